"""Training on the simulator's virtual clock, with its workers' gradients, and synchronous training beside it."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from gem_simulator.durations import Durations
from gem_simulator.events import Event, Kind
from gem_simulator.timeline import TimelineSettings, timeline
from gem_simulator.workload import Hand, Workload, torch_as_it_was
from gem_worker.errors import DivergedError
from gem_worker.flat_model import FlatModel
from gem_worker.hidden_matrices import has_trained_embedding, hidden_matrices
from gem_worker.model_sizes import DEFAULT_SIZES, TransformerSizes
from gem_worker.models import model_for_task
from gem_worker.tasks import Task, create_task
from gem_worker.tasks.options import TaskOptions
from torch import Tensor

from benchmarks.default_study.arithmetic import (
    DirectionState,
    Gem,
    Matrix,
    apply_gem,
    clip,
    orthogonalised,
    rms_normalised,
    with_momentum,
)
from benchmarks.default_study.excerpt import excerpt_of

CONTEXT = 32
PLAIN_GEM = Gem()
ROUND_ROBIN, EXPONENTIAL, SLOW_QUARTER = "round-robin", "exponential", "slow quarter"
# How many times longer each of the slow workers computes.
_SLOWER = 4.0
# Of the learning rate that a schedule begins with, over the run, and at its end.
_WARM_UP, _END = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a task. clip_norm: of each gradient; 0: no limit."""

    task: str
    model: str
    batch_size: int
    clip_norm: float = 0.0
    sizes: TransformerSizes = DEFAULT_SIZES


CASES: Mapping[str, Case] = {
    "text, 28 k": Case("text", "transformer", 8, 1.0, TransformerSizes(2, 24, 2)),
    "text, 107 k": Case("text", "transformer", 8, 1.0, TransformerSizes(2, 56, 4)),
    "text, 388 k": Case("text", "transformer", 8, 1.0, TransformerSizes(3, 96, 4)),
    "digits, mlp": Case("digits", "mlp", 16),
    "digits, cnn": Case("digits", "cnn", 16),
    "fashion-mnist, cnn": Case("fashion-mnist", "cnn", 16),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A way to train: what workers commit, and how the server applies it.

    Attributes:
        kind: `rms`, `spectral`, `gradient`, or `movement` (a step of `optimizer`); `synchronous` has no server.
        optimizer: a class of torch.optim, for `movement` and `synchronous`.
        options: of the optimizer, besides its rate.
        factor: of the rate, in a delta.
        momentum: of the gradients in the worker, before the direction.
        decay: decoupled weight decay, in the rate.
        schedule: whether the rate follows a warm-up and a cosine over the run.
    """

    kind: str
    rule: Gem = PLAIN_GEM
    factor: float = 1.0
    beta2: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    decay: float = 0.0
    optimizer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: bool = False

    def rate(self, base: float, progress: float) -> float:
        """Return the rate at a share of the run, 0 to 1."""
        if not self.schedule:
            return base
        if progress < _WARM_UP:
            return base * (progress + _WARM_UP / 10) / (_WARM_UP * 1.1)
        fallen = (1 + math.cos(math.pi * (progress - _WARM_UP) / (1 - _WARM_UP))) / 2
        return base * (_END + (1 - _END) * fallen)


@dataclass(frozen=True, slots=True)
class Run:
    """One training of `gradients` gradients of all workers together."""

    case: str
    method: str
    rate: float
    workers: int
    order: str
    gradients: int
    seed: int = 0

    @property
    def key(self) -> str:
        """The key under which this run has its results."""
        return (
            f"{self.case} | {self.method} | {self.rate:g} | n = {self.workers}, {self.order} | {self.gradients} "
            f"gradients | seed {self.seed}"
        )


@dataclass(slots=True)
class _Worker:
    hand: Hand
    state: DirectionState
    snapshot: Tensor
    moment: Tensor
    base: int = 0
    step: Callable[[Tensor, Tensor, float], Tensor] | None = None


class _Bench:
    """A model with its gradients; the central variable is `theta`, and `averaged` follows it."""

    def __init__(self, run: Run, *, clips: bool = True) -> None:
        case = CASES[run.case]
        self.task = task_of(run.case)
        self.workload = Workload(
            self.task, case.model, case.batch_size, run.seed, clip_norm=case.clip_norm if clips else 0.0
        )
        values, self.buffers = self.workload.first()
        self.theta = torch.from_numpy(values)
        self.averaged = self.theta.clone()
        self.commits = 0

    def gradient(self, hand: Hand, parameters: Tensor) -> Tensor:
        """Compute a worker's next gradient; valid until the next one."""
        delta, _ = self.workload.step(hand, parameters.numpy(), self.buffers, 1.0)
        return torch.from_numpy(delta.values).neg_()

    def committed(self) -> None:
        """Count an update of `theta`, and let the average follow."""
        self.commits += 1
        self.averaged.lerp_(self.theta, min(1.0, 9 / (self.commits + 9)))

    def figures(self) -> dict[str, float]:
        """Return loss and accuracy, on held-out samples, of the parameters and of their average."""
        loss, accuracy = self.workload.score(self.task.test, self.theta.numpy(), self.buffers)
        averaged_loss, averaged_accuracy = self.workload.score(self.task.test, self.averaged.numpy(), self.buffers)
        found = {"loss": loss, "accuracy": accuracy}
        return found | {"averaged_loss": averaged_loss, "averaged_accuracy": averaged_accuracy}


def train(run: Run, method: Method) -> dict[str, float]:
    """Train; return held-out losses and accuracies, of theta and of its average, the mean of pi, and seconds.

    A run whose gradients stopped being finite has `failed` alone.
    """
    began = time.perf_counter()
    with torch_as_it_was():
        torch.set_num_threads(1)
        try:
            found = _synchronous(run, method) if method.kind == "synchronous" else _asynchronous(run, method)
        except DivergedError:
            found = {"failed": 1.0}
    return found | {"seconds": time.perf_counter() - began}


@cache
def task_of(case: str) -> Task:
    """Load a case's data; of a text, every third held-out window is scored."""
    one = CASES[case]
    task = create_task(one.task, TaskOptions(context=CONTEXT, sizes=one.sizes))
    return excerpt_of(task) if one.task == "text" else task


@cache
def matrices_of(case: str) -> tuple[Matrix, ...]:
    """Those that are orthogonalised: none in a model without an embedding."""
    one = CASES[case]
    flat = FlatModel(model_for_task(task_of(case), one.model, 0))
    if not has_trained_embedding(flat.tensors):
        return ()
    found = (flat.trained[number] for number in hidden_matrices(flat.tensors))
    return tuple(Matrix(tensor.start, tensor.tensor.shape) for tensor in found)


def events(run: Run) -> Iterator[Event]:
    """Yield what happens at the server, on the simulator's clock."""
    times = "constant:1" if run.order == ROUND_ROBIN else "exponential:1"
    slow = range(run.workers // 4) if run.order == SLOW_QUARTER else ()
    return timeline(
        TimelineSettings(
            run.workers,
            Durations(times),
            slower=dict.fromkeys(slow, _SLOWER),
            round_robin=run.order == ROUND_ROBIN,
            commits=run.gradients,
            seed=run.seed,
        )
    )


def _asynchronous(run: Run, method: Method) -> dict[str, float]:
    bench = _Bench(run)
    workers: dict[int, _Worker] = {}
    factors = 0.0
    for event in events(run):
        if event.kind is Kind.PULLED:
            workers[event.rank] = _new_worker(bench, run, method, event.rank)
        elif event.kind is Kind.COMMITTED:
            factors += _commit(bench, workers[event.rank], run, method)
    return bench.figures() | {"pi": factors / max(1, bench.commits)}


def _new_worker(bench: _Bench, run: Run, method: Method, rank: int) -> _Worker:
    zeros = torch.zeros_like(bench.theta)
    state = DirectionState(zeros.clone() if method.momentum else zeros, zeros.clone())
    step = _own_step(bench.theta, method, run) if method.kind == "movement" else None
    return _Worker(bench.workload.hand(rank), state, bench.theta.clone(), zeros.clone(), bench.commits, step)


def _commit(bench: _Bench, worker: _Worker, run: Run, method: Method) -> float:
    rate = method.rate(run.rate, worker.base / run.gradients)
    gradient = bench.gradient(worker.hand, worker.snapshot)
    if worker.step is not None:
        delta = worker.step(worker.snapshot, gradient, rate)
    else:
        direction = _direction(gradient, worker.state, method, matrices_of(run.case))
        delta = direction.mul_(-rate * method.factor)
    pi = apply_gem(bench.theta, worker.snapshot, worker.moment, delta, method.rule)
    if method.decay and worker.step is None:
        bench.theta.mul_(1 - rate * method.decay)
    bench.committed()
    worker.snapshot.copy_(bench.theta)
    worker.base = bench.commits
    return pi


def _direction(gradient: Tensor, state: DirectionState, method: Method, matrices: tuple[Matrix, ...]) -> Tensor:
    values = with_momentum(gradient, state, method.momentum)
    if method.kind == "gradient":
        return values
    if method.kind == "spectral":
        values = orthogonalised(values, matrices)
    return rms_normalised(values, state, method.beta2, method.epsilon)


def _own_step(theta: Tensor, method: Method, run: Run) -> Callable[[Tensor, Tensor, float], Tensor]:
    """Return a function (parameters, gradient, rate) that gives a step of the worker's own optimizer."""
    own = theta.clone()
    optimizer = getattr(torch.optim, method.optimizer)([own], lr=run.rate, **method.options)

    def step(parameters: Tensor, gradient: Tensor, rate: float) -> Tensor:
        own.copy_(parameters)
        own.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        return own - parameters

    return step


def _synchronous(run: Run, method: Method) -> dict[str, float]:
    """Average a gradient of each worker, clip, and step; one worker is the script alone."""
    bench = _Bench(run, clips=False)
    hands = [bench.workload.hand(rank) for rank in range(run.workers)]
    step = _own_step(bench.theta, method, run)
    for number in range(run.gradients // run.workers):
        rate = method.rate(run.rate, number * run.workers / run.gradients)
        total = torch.zeros_like(bench.theta)
        for hand in hands:
            total += bench.gradient(hand, bench.theta)
        gradient = clip(total.div_(run.workers), CASES[run.case].clip_norm)
        bench.theta.add_(step(bench.theta, gradient, rate))
        bench.committed()
    return bench.figures()
