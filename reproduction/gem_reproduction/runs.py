"""What is run: one training, by its settings; and how much of everything a reproduction asks for.

A run is known by its settings and by what computed it, not by the figure that asked for it: figures that need the same
run share it, and a run that is done is not done again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from gem_simulator.settings import SimulationSettings
from pydantic import ValidationError

from gem_reproduction.errors import ReproductionError

# Of what a run's file holds; a run of another format is done again.
FORMAT = 1

# simulation: gem_simulator's. momentum-sgd: one process without a server (momentum_sgd.py).
Method = Literal["simulation", "momentum-sgd"]
# task: what the settings name. patterns: images that are made for figure 7 (patterns.py).
Data = Literal["task", "patterns"]

# One pass over MNIST's 60 000 images at 64 a step, as in the paper.
PAPER_STEPS = 937
# The least that its claims are judged on.
QUICK_STEPS = 200
PAPER_SEEDS = 3


@cache
def _version(package: str) -> str:
    """Looked up once: a reproduction has thousands of runs, and every look reads files."""
    return version(package)


@dataclass(frozen=True, slots=True)
class Run:
    """One training.

    Attributes:
        settings: of it. For momentum SGD those of its one worker: eta, batch, seed, steps, task and model.
        method, data: see above.
        candidate: a rule of candidates.py in place of that of the settings, whose settings it takes.
        large: the model has so many parameters that memory may hold one such run only, and that medians of pi take
            longer than a step: there are none.
    """

    settings: SimulationSettings
    method: Method = "simulation"
    data: Data = "task"
    candidate: str = ""
    large: bool = False

    def describe(self) -> dict[str, Any]:
        """Plain JSON values from which the same run can be made again."""
        settings = self.settings.model_dump(mode="json")
        described = {"settings": settings, "method": self.method, "data": self.data, "large": self.large}
        return described | ({"candidate": self.candidate} if self.candidate else {})

    @classmethod
    def from_description(cls, value: Mapping[str, Any]) -> Self:
        """What `describe` described."""
        candidate = value.get("candidate", "")
        return cls(SimulationSettings(**value["settings"]), value["method"], value["data"], candidate, value["large"])

    def key(self) -> str:
        """16 hexadecimal digits of SHA-256 over what decides its result: description, gemps, torch."""
        decisive = self.describe() | {"format": FORMAT, "gemps": _version("gemps"), "torch": _version("torch")}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def commits(self) -> int:
        """How many it has at most, if its budget says so; else 0."""
        budgets = (self.settings.steps * self.settings.workers, self.settings.commits)
        return min((one for one in budgets if one), default=0)

    def title(self) -> str:
        """A few words for whoever watches."""
        settings = self.settings
        if self.method == "momentum-sgd":
            return f"momentum SGD, eta {settings.eta:g}, {settings.steps} steps, seed {settings.seed}"
        values = "".join(f" {name} {value:g}" for name, value in settings.settings_of_rule().items())
        exchange = "" if settings.exchange == "service" else f", exchange {settings.exchange}"
        workers = f"{settings.workers} worker{'' if settings.workers == 1 else 's'}"
        rule = self.candidate or settings.rule
        return (
            f"{rule}{values}, {workers}, eta {settings.eta:g}, batch {settings.batch_size}{exchange}, "
            f"seed {settings.seed}"
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run, and on what.

    Attributes:
        quick: the short form, which shows the same claims with fewer steps.
        task, model, dataset_dir: as in gem_worker.
        images: folder of images for figure 7; None: it makes some.
        steps: of each worker, where a figure does not say otherwise.
        seeds: runs that are averaged: 0, 1, ...
        rule_settings: of GEM, in place of its defaults; to see what becomes of the claims.
    """

    quick: bool = False
    task: str = "digits"
    model: str = "cnn"
    dataset_dir: Path = Path("data")
    images: Path | None = None
    steps: int = PAPER_STEPS
    seeds: int = PAPER_SEEDS
    rule_settings: Mapping[str, float] = field(default_factory=dict)

    def beside(self) -> "Scope":
        """For runs that no claim depends on which must hold: the quick form has one seed of them."""
        return replace(self, seeds=1) if self.quick else self

    def simulations(
        self, rule: str = "gem", *, data: Data = "task", candidate: str = "", large: bool = False, **settings: Any
    ) -> tuple[Run, ...]:
        """The same run over all seeds: GEM unless told otherwise, round-robin, eta 0.05, batch 64."""
        rule_settings = settings.pop("rule_settings", {})
        if rule == "gem" and not candidate:
            rule_settings = {**rule_settings, **self.rule_settings}
        return tuple(
            Run(
                self._settings(rule=rule, rule_settings=rule_settings, seed=seed, **settings),
                data=data,
                candidate=candidate,
                large=large,
            )
            for seed in range(self.seeds)
        )

    def momentum_sgd(self, **settings: Any) -> tuple[Run, ...]:
        """Momentum SGD over all seeds, on the batches of worker 0."""
        return tuple(
            Run(self._settings(workers=1, rule="downpour", seed=seed, **settings), "momentum-sgd")
            for seed in range(self.seeds)
        )

    def _settings(self, **given: Any) -> SimulationSettings:
        """All fields are given, so that no environment variable changes a declared experiment."""
        defaults = {
            name: one.get_default(call_default_factory=True, validated_data={})
            for name, one in SimulationSettings.model_fields.items()
        }
        ours = {"task": self.task, "model": self.model, "dataset_dir": self.dataset_dir, "order": "round-robin"}
        if not given.keys() & {"steps", "commits", "seconds"}:
            ours["steps"] = self.steps
        try:
            return SimulationSettings(**{**defaults, **ours, **given})
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise ReproductionError(f"{where}: {error.errors()[0]['msg']}") from None

    def describe(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "quick": self.quick,
            "task": self.task,
            "model": self.model,
            "images": self.images is not None,
            "steps": self.steps,
            "seeds": self.seeds,
            "rule_settings": dict(self.rule_settings),
        }

    def subtitle(self) -> str:
        """What pictures say of it."""
        changed = "".join(f", {name} = {value:g}" for name, value in self.rule_settings.items())
        seeds = f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"
        return f"{self.model} on {self.task}, round-robin, {self.steps} steps, {seeds}{changed}"
