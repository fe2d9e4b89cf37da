"""Simulation results."""

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, Statistics
from gem_simulator.cluster import Commit
from gem_simulator.evaluation import Evaluation

if TYPE_CHECKING:
    import pandas

_STATISTICS = Statistics._fields
# Float64 per commit (NaN: no finite loss).
COLUMNS = ("at", "waited", "rank", "sequence", "staleness", "loss", "skipped", *_STATISTICS)


class History:
    """All commits in order, as growing arrays."""

    def __init__(self) -> None:
        self._rows = np.empty((1024, len(COLUMNS)))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, commit: Commit) -> None:
        """Append a commit."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        first = (commit.at, commit.waited, commit.rank, commit.sequence, commit.staleness)
        loss = math.nan if commit.loss is None else commit.loss
        statistics = (getattr(commit.statistics, name) for name in _STATISTICS)
        self._rows[self._count] = (*first, loss, commit.skipped, *statistics)
        self._count += 1

    def column(self, name: str) -> NDArray[np.float64]:
        """A view of one of `COLUMNS`. Raises KeyError."""
        if name not in COLUMNS:
            raise KeyError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        values: NDArray[np.float64] = self._rows[: self._count, COLUMNS.index(name)]
        return values

    def to_pandas(self) -> "pandas.DataFrame":
        """All columns."""
        import pandas

        return pandas.DataFrame({name: self.column(name).copy() for name in COLUMNS})


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        parameters: final theta, float32.
        digest: SHA-256 of parameters and buffers.
        clock: commits + 1.
        evaluations: the last one is final.
        diverged: a worker gave up after 100 consecutive non-finite gradients.
        compared_end: the parameters equal the trace's.
        bits_per_character: of the final held-out loss; None: no text.
    """

    layout: Layout
    parameters: NDArray[np.float32]
    buffers: bytes
    digest: str
    clock: int
    history: History
    evaluations: list[Evaluation]
    diverged: bool
    peak_memory_bytes: int
    settings: dict[str, Any] = field(default_factory=dict)
    compared_end: bool = False
    bits_per_character: float | None = None

    @property
    def commits(self) -> int:
        """Number of commits."""
        return len(self.history)

    @property
    def final(self) -> Evaluation:
        """The final evaluation."""
        return self.evaluations[-1]

    def jain_index(self) -> float:
        """Jain's index over the workers' commits."""
        counts = np.bincount(self.history.column("rank").astype(np.int64)) if self.commits else np.ones(1)
        return float(counts.sum() ** 2 / (counts.size * (counts**2).sum()))

    def summary(self) -> dict[str, Any]:
        """Key figures as JSON values."""
        last = slice(-max(1, self.commits // 10), None)
        return {
            "commits": self.commits,
            "virtual_seconds": float(self.history.column("at")[-1]) if self.commits else 0.0,
            "diverged": self.diverged,
            "training_loss": self.final.training_loss,
            "test_loss": self.final.test_loss,
            "accuracy": self.final.accuracy,
            "bits_per_character": self.bits_per_character,
            "mean": self._means(slice(None)),
            "last_tenth": self._means(last),
            "skipped": int(self.history.column("skipped").sum()),
            "jain_index": self.jain_index(),
            "digest": self.digest,
            "compared_end": self.compared_end,
            "peak_memory_bytes": self.peak_memory_bytes,
        }

    def _means(self, commits: slice) -> dict[str, float | None]:
        names = ("staleness", "loss", "mean_pi", "blocked_fraction", "clamped_fraction")
        return {name: float(self.history.column(name)[commits].mean()) if self.commits else None for name in names}


def peak_memory() -> int:
    """Peak memory in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
