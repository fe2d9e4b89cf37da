"""Executes one run."""

import math
import time
from functools import cache

import numpy as np
from gem_simulator import SimulationResult, simulate
from gem_worker.flat_model import FlatModel
from gem_worker.models import model_for_task
from gem_worker.tasks import Task, TaskOptions, create_task

from gem_core import UpdateRule, create_rule
from gem_reproduction import momentum_sgd
from gem_reproduction.candidates import CANDIDATES
from gem_reproduction.median_pi import MedianOfPi
from gem_reproduction.momentum_sgd import Trained
from gem_reproduction.outcomes import CURVES, Medians, Outcome, curves, tenths
from gem_reproduction.patterns import load_patterns
from gem_reproduction.runs import Data, Run


def perform(run: Run) -> Outcome:
    """Execute a run. Raises TaskError, RuleError, SimulationError."""
    began = time.perf_counter()
    task = _task(run.data, run.settings.task, run.settings.task_options())
    if run.method == "momentum-sgd":
        return _trained(momentum_sgd.train(run.settings, task), task, began)
    rule = _rule(run)
    if run.large:
        return _simulated(simulate(run.settings, rule=rule, task=task), Medians(), task, began)
    model = model_for_task(task, run.settings.model, run.settings.seed)
    look = MedianOfPi(rule, FlatModel(model).layout, run.commits, run.settings.workers)
    result = simulate(run.settings, rule=rule, task=task, before_rule=look)
    return _simulated(result, look.found, task, began)


def _rule(run: Run) -> UpdateRule:
    settings = run.settings.settings_of_rule()
    if run.candidate:
        return CANDIDATES[run.candidate](settings)
    return create_rule(run.settings.rule, **settings)


@cache
def _task(data: Data, name: str, options: TaskOptions) -> Task:
    return load_patterns() if data == "patterns" else create_task(name, options)


def _simulated(result: SimulationResult, medians: Medians, task: Task, began: float) -> Outcome:
    column = result.history.column
    by_tenth, middle = tenths(column("loss"))
    names = ("mean_pi", "blocked_fraction", "clamped_fraction", "staleness")
    return Outcome(
        evaluations=result.evaluations,
        chance_loss=math.log(task.classes),
        commits=result.commits,
        skipped=int(column("skipped").sum()),
        gave_up=result.diverged,
        finite=bool(np.isfinite(column("loss")).all() and np.isfinite(result.parameters).all()),
        tenths=by_tenth,
        middle=middle,
        **{name: float(column(name).mean()) if result.commits else math.nan for name in names},
        curves=curves(
            column("sequence"),
            {name: column(name) for name in CURVES},
        ),
        medians=medians,
        seconds=time.perf_counter() - began,
    )


def _trained(trained: Trained, task: Task, began: float) -> Outcome:
    losses = np.array(trained.losses)
    steps = np.arange(1.0, len(losses) + 1)
    by_tenth, middle = tenths(losses)
    nothing = np.zeros_like(losses)
    columns = {"at": steps, "loss": losses, "mean_pi": nothing, "blocked_fraction": nothing, "staleness": nothing}
    return Outcome(
        evaluations=trained.evaluations,
        chance_loss=math.log(task.classes),
        commits=len(losses),
        finite=trained.finite,
        tenths=by_tenth,
        middle=middle,
        curves=curves(steps, columns),
        seconds=time.perf_counter() - began,
    )
