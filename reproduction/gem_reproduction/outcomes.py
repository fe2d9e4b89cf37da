"""What is kept of a run: the figures that claims are about, and curves short enough to draw and to keep as JSON."""

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

from gem_reproduction.runs import Run

# Points of a curve: more than a picture of this size can show.
POINTS = 100

# What a curve has of each bin of worker steps, as means over the commits of all workers in it.
CURVES = ("at", "loss", "mean_pi", "blocked_fraction", "staleness")


@dataclass(frozen=True, slots=True)
class Curves:
    """Means over bins of worker steps; all lists are of one length. `step`: the last one of a bin."""

    step: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    mean_pi: list[float] = field(default_factory=list)
    blocked_fraction: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Medians:
    """The median of pi over the elements with delta != 0, of some commits (observing.py).

    tensors: names of the model's parameters. commits: how many had been applied. whole: over the whole model.
    by_tensor: a row a commit, a column a tensor.
    """

    tensors: list[str] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    by_tensor: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run.

    Attributes:
        evaluations: the last is of the end; its training loss is L, what the claims compare.
        chance_loss: log(classes), the loss of whoever knows nothing.
        commits: that were applied. skipped: gradients that were not finite.
        gave_up: a worker did, after 100 of these in a row.
        finite: all losses and the last parameters are.
        tenths: mean loss of the minibatches, with dropout, of each tenth of the commits; and around the middle, from
            0.45 to 0.55 of them, as `middle`.
        mean_pi, blocked_fraction, clamped_fraction, staleness: means over all commits.
        curves, medians: over time.
        seconds: of the wall clock, that it took.
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
        """L: the mean loss over all training samples at the end; inf when it is not finite."""
        loss = self.evaluations[-1].training_loss
        return loss if self.finite and math.isfinite(loss) else math.inf

    @property
    def minibatch_loss(self) -> float:
        """The mean loss of the last tenth's minibatches, with dropout; inf when one was not finite."""
        return self.tenths[-1] if self.tenths and self.finite else math.inf

    @property
    def test_loss(self) -> float:
        """The mean loss over the held-out samples at the end; inf when it is not finite."""
        loss = self.evaluations[-1].test_loss
        return loss if self.finite and math.isfinite(loss) else math.inf

    @property
    def accuracy(self) -> float:
        """The fraction of the held-out samples that are right at the end."""
        return self.evaluations[-1].accuracy

    @property
    def has_diverged(self) -> bool:
        """A gradient, a loss or a parameter was not finite."""
        return self.gave_up or self.skipped > 0 or not math.isfinite(self.loss)

    @property
    def has_failed(self) -> bool:
        """It diverged, or has learnt nothing: it ended no better than chance."""
        return self.has_diverged or not self.loss < self.chance_loss

    def describe(self) -> dict[str, Any]:
        """Plain JSON values: what is not finite is None."""
        described: dict[str, Any] = _plain(asdict(self))
        return described

    @classmethod
    def from_description(cls, value: Mapping[str, Any]) -> Self:
        """What `describe` described. Raises KeyError or TypeError for anything else."""
        rest = dict(value)
        evaluations = [Evaluation(**_numbers(one)) for one in rest.pop("evaluations")]
        curves = Curves(**{name: _row(one) for name, one in rest.pop("curves").items()})
        medians = dict(rest.pop("medians"))
        medians |= {"whole": _row(medians["whole"]), "by_tensor": [_row(one) for one in medians["by_tensor"]]}
        tenths = _row(rest.pop("tenths"))
        return cls(evaluations, curves=curves, medians=Medians(**medians), tenths=tenths, **_numbers(rest))


def tenths(losses: NDArray[np.float64]) -> tuple[list[float], float]:
    """(mean of each tenth, mean from 0.45 to 0.55) of the losses of all commits in order."""
    count = len(losses)
    edges = [round(count * part / 20) for part in range(21)]
    return [_mean(losses[edges[at] : edges[at + 2]]) for at in range(0, 20, 2)], _mean(losses[edges[9] : edges[11]])


def curves(step: NDArray[np.float64], columns: Mapping[str, NDArray[np.float64]]) -> Curves:
    """Means over at most POINTS bins of worker steps.

    Args:
        step: of each commit, from 1: the number of this worker's commits.
        columns: of each commit, what `CURVES` names.
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
    """What is kept of the run; None: nothing that can be read."""
    try:
        found = json.loads(path(folder, run).read_text(encoding="utf-8"))
        return Outcome.from_description(found["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, run: Run, outcome: Outcome) -> None:
    """Keep it. Whoever is interrupted leaves no half of a file under this name. Raises OSError."""
    target = path(folder, run)
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps({"run": run.describe(), "outcome": outcome.describe()}), encoding="utf-8")
    half.replace(target)


def path(folder: Path, run: Run) -> Path:
    """Where a run is kept."""
    return folder / "runs" / f"{run.key()}.json"


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _plain(value: Any) -> Any:
    """Numbers that JSON does not have become null."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in values.items()}
