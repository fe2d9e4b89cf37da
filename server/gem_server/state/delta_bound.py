"""Bounds what one worker's deltas can do, by the norms of the other workers' deltas.

A worker whose gradients are a hundred times too large would decide the whole run, and one broken batch can undo it. The
applying task asks `DeltaBound.judge` about each commit, in the order in which commits are applied. A delta is too large
if its norm is more than `factor` times the median of the others'. It is then scaled down to that median, before
anything else sees it: the rule, the log and the trace have what was applied.

All norms are per unit of the commit's learning rate, so schedules do not matter. The median of the others is taken in
two steps. Each worker's own median is that of its last WINDOW commits, so that one strange batch does not move it. The
median of the others is then that of these, one for each worker with a session, so that a fast worker counts no more
than a slow one. Where there are two middle values it is the smaller. The windows have the norms as they came, not as
they were applied: if the gradients of most workers become larger, as after a change of the data, the median follows
within a few commits of each. A minority of the workers cannot move the median, whatever their norms are.

Nothing is bounded until the others have ENOUGH commits together. So nothing is bounded in a run of one worker, nor as
long as all deltas of the others are 0.

A worker with the habit (recent_commits.py) of deltas that are too large is quarantined: its deltas are multiplied by 0,
until an operator ends that. Its norms do not count for the others. The quarantine belongs to the worker's name, so that
a new session does not end it; a new server process does.

For the event loop's thread. What it keeps is bounded: WINDOW numbers for each session.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from gem_server.state.workers import Worker

# An odd number, so that the median is a value. A worker's first commits after a jump are judged by the old scale: at
# most half of these.
WINDOW = 7
# Commits of the others before anything is bounded. With 16, one worker of four whose gradients are 100 times too large
# commits five or so deltas before, and simulated digits end at 0.55 to 0.74 instead of 0.97 (docs/reliability.md). The
# first norms of healthy workers differed by a factor of 3 at most.
ENOUGH = 3


class Judgement(NamedTuple):
    """The decision about a delta.

    Attributes:
        factor: of the delta, from 0 to 1. 1: apply it as it is.
        excess: how many times the median of the others its norm is; 0 if that is unknown.
        begins_quarantine: whether the worker is quarantined from its next commit on.
    """

    factor: float = 1.0
    excess: float = 0.0
    begins_quarantine: bool = False


@dataclass(slots=True)
class _Norms:
    """A worker's last norms, per unit of eta, their median, and how many there were since its session began."""

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    median: float = 0.0
    count: int = 0


class DeltaBound:
    """Judges deltas.

    Args:
        factor: how many times the median of the others a norm may be; 0: any.
        quarantines: False on a server that gets the decision from another one.
    """

    def __init__(self, factor: float, *, quarantines: bool = True) -> None:
        self._factor = factor
        self._quarantines = quarantines
        self._norms: dict[str, _Norms] = {}
        self._medians: list[float] = []  # of `_norms`, ascending
        self._commits = 0  # in `_norms`

    @property
    def is_on(self) -> bool:
        """Whether deltas are bounded, so that their norms are needed."""
        return self._factor > 0

    def judge(self, worker: Worker, norm: float, eta: float, *, has_session: bool = True) -> Judgement:
        """Decide about the next delta to be applied, and remember its norm.

        Args:
            worker: who committed it; its count of scaled deltas and its quarantine are updated.
            norm: the delta's Euclidean norm, finite.
            eta: the learning rate in the delta. With 0 its scale is unknown, and the delta is not bounded: in a run
                with a recipe it is that of the first group, which a script may freeze.
            has_session: False for a session that ended while the commit waited: it is judged, but not remembered.
        """
        size = norm / eta if eta else 0.0
        usual = self._median_of_others(worker.name)
        excess = size / usual if usual else 0.0
        is_too_large = excess > self._factor
        worker.scaled_recently.record(is_of_kind=is_too_large)
        if worker.quarantined:
            worker.scaled += 1
            return Judgement(0.0, excess)
        if has_session and size:
            self._remember(worker.name, size)
        if not is_too_large:
            return Judgement(1.0, excess)
        worker.scaled += 1
        if self._quarantines and worker.scaled_recently.is_habit:
            worker.quarantined = True
            self.forget(worker.name)
        return Judgement(1 / excess, excess, worker.quarantined)

    def forget(self, worker: str) -> None:
        """Forget a worker's norms, whose session has ended."""
        norms = self._norms.pop(worker, None)
        if norms is not None:
            del self._medians[bisect_left(self._medians, norms.median)]
            self._commits -= norms.count

    def _median_of_others(self, worker: str) -> float:
        """The smaller middle of the other workers' medians; 0: not known yet."""
        own, medians = self._norms.get(worker), self._medians
        if self._commits - (own.count if own is not None else 0) < ENOUGH:
            return 0.0
        if own is None:
            return medians[(len(medians) - 1) // 2]
        middle = (len(medians) - 2) // 2  # of those without this one
        return medians[middle + (bisect_left(medians, own.median) <= middle)]

    def _remember(self, worker: str, size: float) -> None:
        norms = self._norms.get(worker)
        if norms is None:
            norms = self._norms[worker] = _Norms()
        else:
            del self._medians[bisect_left(self._medians, norms.median)]
        norms.newest.append(size)
        norms.count += 1
        self._commits += 1
        norms.median = sorted(norms.newest)[(len(norms.newest) - 1) // 2]
        insort(self._medians, norms.median)


def end_quarantine(worker: Worker) -> bool:
    """Let a worker's deltas count again; return whether it was quarantined."""
    was_quarantined = worker.quarantined
    worker.quarantined = False
    worker.scaled_recently.bits = 0
    return was_quarantined
