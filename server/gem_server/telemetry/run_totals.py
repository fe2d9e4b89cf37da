"""Sums over all commits of a run, which a restart of the server continues."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from gem_core import Statistics
from gem_core.shards import combined
from gem_server.telemetry.history import Interval

# The sums of `RunTotals` that are fractions of elements or factors, in the order in which shards report them.
SHARES = ("mean_pi", "blocked", "clamped")


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Sums over the commits of a run that were measured, for means of the whole run.

    Attributes:
        commits: number of commits in the sums. Fewer than the run has if the checkpoint that the server resumed from
            was made by a version of gemps that did not save the sums.
        staleness: sum of the staleness, in commits.
        mean_pi: sum of each commit's mean pi. This and the following are of one server's range of the model.
        blocked: sum of each commit's fraction of blocked elements.
        clamped: sum of each commit's fraction of clamped elements.
    """

    commits: int = 0
    staleness: int = 0
    mean_pi: float = 0.0
    blocked: float = 0.0
    clamped: float = 0.0

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """Return the sums of an interval's commits."""
        return cls(interval.commits, interval.staleness, interval.mean_pi, interval.blocked, interval.clamped)

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Self:
        """Return what `as_record` returned. Raises TypeError or ValueError if it is damaged."""
        return cls(
            int(saved.get("commits", 0)),
            int(saved.get("staleness", 0)),
            *(float(saved.get(name, 0.0)) for name in SHARES),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        return asdict(self)

    def plus(self, other: "RunTotals") -> "RunTotals":
        """Return the sums over the commits of both."""
        return RunTotals(
            self.commits + other.commits,
            self.staleness + other.staleness,
            self.mean_pi + other.mean_pi,
            self.blocked + other.blocked,
            self.clamped + other.clamped,
        )

    def with_commit(self, statistics: Statistics, staleness: int) -> "RunTotals":
        """Return the sums with one more commit."""
        shares = (statistics.mean_pi, statistics.blocked_fraction, statistics.clamped_fraction)
        return self.plus(RunTotals(1, staleness, *shares))

    @property
    def means(self) -> tuple[float, ...]:
        """Means over the commits of `SHARES`, in that order; there must be a commit."""
        return tuple(getattr(self, name) / self.commits for name in SHARES)


def of_whole_model(pieces: Sequence[RunTotals], elements: Sequence[int]) -> RunTotals:
    """Combine the sums of several servers, each with a range of the model.

    Args:
        pieces: the sums of each server; the first one's number of commits and staleness are the result's. Servers
            without commits are left out.
        elements: how many elements each server holds.
    """
    first = pieces[0]
    known = [(piece.means, count) for piece, count in zip(pieces, elements, strict=True) if piece.commits]
    if not first.commits:
        return first
    shares = combined([means for means, _ in known], [count for _, count in known])
    return RunTotals(first.commits, first.staleness, *(first.commits * share for share in shares))
