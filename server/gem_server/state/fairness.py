"""Jain's index of fairness (Jain, Chiu and Hawe, 1984, DEC TR-301), over the commits of live workers."""

from collections.abc import Iterable

from gem_server.state.workers import Worker


def jain_index(counts: Iterable[int]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything; 1 for nothing at all."""
    values = list(counts)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


class FairnessWindow:
    """Commits of each worker while the same set of workers was live.

    A worker that joins starts a new window, because it could not have committed before. The first that goes closes
    it: the index then stays what it was, until somebody joins again.
    """

    def __init__(self) -> None:
        self._baseline: dict[str, int] = {}
        self._closed: float | None = None

    def joined(self, live: Iterable[Worker]) -> None:
        """Start a new window over these workers."""
        self._baseline = {worker.name: worker.commits for worker in live}
        self._closed = None

    def going(self, live: Iterable[Worker]) -> None:
        """One of these workers is about to go, or has spent its budget."""
        if self._closed is None:
            self._closed = self.index(live)

    def index(self, live: Iterable[Worker]) -> float:
        """The index of the present window, or of the one that was closed last."""
        if self._closed is not None:
            return self._closed
        return jain_index(
            worker.commits - self._baseline[worker.name] for worker in live if worker.name in self._baseline
        )
