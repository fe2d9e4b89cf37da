"""The runs of the reproduction. A run's key depends on its settings and on the versions of the software."""

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

# The format of files with finished runs. Runs in files of another format are made again.
FORMAT = 1

# momentum-sgd is a run without a server.
Method = Literal["simulation", "momentum-sgd"]
# The task "patterns" has synthetic images.
Data = Literal["task", "patterns"]

# One pass over MNIST with batch 64.
PAPER_STEPS = 937
# Fewest steps for judging claims.
QUICK_STEPS = 200
PAPER_SEEDS = 3


@cache
def _version(package: str) -> str:
    return version(package)


@dataclass(frozen=True, slots=True)
class Run:
    """One training.

    `candidate` replaces the rule of the settings. A `large` run has no medians of pi, and is made alone if memory is
    short.
    """

    settings: SimulationSettings
    method: Method = "simulation"
    data: Data = "task"
    candidate: str = ""
    large: bool = False

    def describe(self) -> dict[str, Any]:
        """Return JSON values from which `from_description` makes this run again."""
        settings = self.settings.model_dump(mode="json")
        described = {"settings": settings, "method": self.method, "data": self.data, "large": self.large}
        return described | ({"candidate": self.candidate} if self.candidate else {})

    @classmethod
    def from_description(cls, value: Mapping[str, Any]) -> Self:
        """Make a run from the result of `describe`."""
        candidate = value.get("candidate", "")
        return cls(SimulationSettings(**value["settings"]), value["method"], value["data"], candidate, value["large"])

    def key(self) -> str:
        """The first 16 hexadecimal digits of a SHA-256 of the description and the versions."""
        decisive = self.describe() | {"format": FORMAT, "gemps": _version("gemps"), "torch": _version("torch")}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def commits(self) -> int:
        """The largest number of commits by the budget, or 0 if there is no limit."""
        budgets = (self.settings.steps * self.settings.workers, self.settings.commits)
        return min((one for one in budgets if one), default=0)

    def title(self) -> str:
        """A short description for people."""
        settings = self.settings
        if self.method == "momentum-sgd":
            return f"momentum SGD, eta {settings.eta:g}, {settings.steps} steps, seed {settings.seed}"
        values = "".join(f" {name} {value:g}" for name, value in settings.settings_of_rule().items())
        width = f", width {settings.width}" if settings.task == "text" else ""
        exchange = "" if settings.exchange == "service" else f", exchange {settings.exchange}"
        workers = f"{settings.workers} worker{'' if settings.workers == 1 else 's'}"
        rule = self.candidate or settings.rule
        rule += "" if settings.direction == "gradient" else f" direction {settings.direction}"
        return (
            f"{rule}{values}, {workers}, eta {settings.eta:g}, batch {settings.batch_size}{width}{exchange}, "
            f"seed {settings.seed}"
        )


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run, and with which data.

    `images` is a folder of images for figure 7; None means synthetic ones. `rule_settings` are settings of GEM.
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
        """The scope of claims that need not hold. It has one seed if the scope is quick."""
        return replace(self, seeds=1) if self.quick else self

    def simulations(
        self,
        rule: str = "gem",
        *,
        data: Data = "task",
        candidate: str = "",
        large: bool = False,
        **settings: Any,
    ) -> tuple[Run, ...]:
        """Return a run over all seeds. Defaults: rule GEM, order round-robin, eta 0.05, batches of 64."""
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
        """Return a run of momentum SGD over all seeds."""
        return tuple(
            Run(self._settings(workers=1, rule="downpour", seed=seed, **settings), "momentum-sgd")
            for seed in range(self.seeds)
        )

    def _settings(self, **given: Any) -> SimulationSettings:
        """Ignores environment variables."""
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
        """Return the scope as JSON values."""
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
        """Return the subtitle of pictures."""
        changed = "".join(f", {name} = {value:g}" for name, value in self.rule_settings.items())
        seeds = f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"
        return f"{self.model} on {self.task}, round-robin, {self.steps} steps, {seeds}{changed}"
