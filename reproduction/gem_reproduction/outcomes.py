"""Stored results, as JSON."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from gem_simulator.evaluation import Evaluation
from numpy.typing import NDArray

from gem_core.regular_files import read_text
from gem_reproduction.runs import Run

POINTS = 100

CURVES = ("at", "loss", "mean_pi", "blocked_fraction", "staleness")


@dataclass(frozen=True, slots=True)
class Curves:
    """Means over bins of worker steps; `step`: a bin's last."""

    step: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    mean_pi: list[float] = field(default_factory=list)
    blocked_fraction: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Medians:
    """Median of pi over elements with delta != 0.

    commits: applied before. by_tensor: [commit][tensor].
    """

    tensors: list[str] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    by_tensor: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's result.

    Attributes:
        evaluations: the last one is final.
        chance_loss: log(classes).
        skipped: non-finite gradients.
        gave_up: after 100 in a row.
        tenths: mean minibatch loss per tenth of the commits; `middle`: from 0.45 to 0.55.
        seconds: wall-clock.
    """

    evaluations: list[Evaluation]
    chance_loss: float
    commits: int = 0
    skipped: int = 0
    gave_up: bool = False
    finite: bool = True
    tenths: list[float] = field(default_factory=list)
    middle: float = math.nan
    mean_pi: float = math.nan
    blocked_fraction: float = math.nan
    clamped_fraction: float = math.nan
    staleness: float = math.nan
    curves: Curves = field(default_factory=Curves)
    medians: Medians = field(default_factory=Medians)
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """L: final training loss; inf if not finite."""
        loss = self.evaluations[-1].training_loss
        return loss if self.finite and math.isfinite(loss) else math.inf

    @property
    def minibatch_loss(self) -> float:
        """Last tenth's minibatch loss; inf if not finite."""
        return self.tenths[-1] if self.tenths and self.finite else math.inf

    @property
    def test_loss(self) -> float:
        """Final held-out loss; inf if not finite."""
        loss = self.evaluations[-1].test_loss
        return loss if self.finite and math.isfinite(loss) else math.inf

    @property
    def accuracy(self) -> float:
        """Final held-out accuracy."""
        return self.evaluations[-1].accuracy

    @property
    def has_diverged(self) -> bool:
        """Whether anything was not finite."""
        return self.gave_up or self.skipped > 0 or not math.isfinite(self.loss)

    @property
    def has_failed(self) -> bool:
        """Whether it diverged or did not beat chance."""
        return self.has_diverged or not self.loss < self.chance_loss

    def describe(self) -> dict[str, Any]:
        """JSON values; non-finite becomes None."""
        described: dict[str, Any] = _plain(asdict(self))
        return described

    @classmethod
    def from_description(cls, value: Mapping[str, Any]) -> Self:
        """Invert `describe`. Raises KeyError, TypeError."""
        rest = dict(value)
        evaluations = [Evaluation(**_numbers(one)) for one in rest.pop("evaluations")]
        curves = Curves(**{name: _row(one) for name, one in rest.pop("curves").items()})
        medians = dict(rest.pop("medians"))
        medians |= {"whole": _row(medians["whole"]), "by_tensor": [_row(one) for one in medians["by_tensor"]]}
        tenths = _row(rest.pop("tenths"))
        return cls(evaluations, curves=curves, medians=Medians(**medians), tenths=tenths, **_numbers(rest))


def tenths(losses: NDArray[np.float64]) -> tuple[list[float], float]:
    """Means of the tenths, and from 0.45 to 0.55."""
    count = len(losses)
    edges = [round(count * part / 20) for part in range(21)]
    return [_mean(losses[edges[at] : edges[at + 2]]) for at in range(0, 20, 2)], _mean(losses[edges[9] : edges[11]])


def curves(step: NDArray[np.float64], columns: Mapping[str, NDArray[np.float64]]) -> Curves:
    """Average over bins of worker steps.

    `step`: number of the worker's commit, from 1; `columns`: by commit.
    """
    last = int(step.max(initial=0))
    if not last:
        return Curves()
    bins = min(last, POINTS)
    which = np.ceil(step * bins / last).astype(np.int64) - 1
    counts = np.bincount(which, minlength=bins)
    means = {
        name: (np.bincount(which, columns[name], minlength=bins) / np.maximum(counts, 1)).tolist() for name in CURVES
    }
    return Curves(step=[(at + 1) * last / bins for at in range(bins)], **means)


def read(folder: Path, run: Run) -> Outcome | None:
    """Read an outcome; None if unreadable."""
    try:
        found = json.loads(read_text(path(folder, run)))
        return Outcome.from_description(found["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, run: Run, outcome: Outcome) -> None:
    """Store an outcome. Raises OSError."""
    target = path(folder, run)
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps({"run": run.describe(), "outcome": outcome.describe()}), encoding="utf-8")
    half.replace(target)


def path(folder: Path, run: Run) -> Path:
    """A run's file."""
    return folder / "runs" / f"{run.key()}.json"


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in values.items()}
