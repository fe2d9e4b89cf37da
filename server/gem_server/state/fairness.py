"""Jain's index of fairness (Jain, Chiu and Hawe, 1984, DEC TR-301)."""

from collections.abc import Iterable

from gem_server.state.workers import Worker


def jain_index(counts: Iterable[int]) -> float:
    """(sum x)^2 / (n * sum x^2), from 1/n to 1; 1 if empty."""
    values = list(counts)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


class FairnessWindow:
    """Commits per worker since the last join, until a worker leaves."""

    def __init__(self) -> None:
        self._baseline: dict[str, int] = {}
        self._closed: float | None = None

    def joined(self, live: Iterable[Worker]) -> None:
        """Start a new window."""
        self._baseline = {worker.name: worker.commits for worker in live}
        self._closed = None

    def going(self, live: Iterable[Worker]) -> None:
        """Close the window. Call before a worker leaves."""
        if self._closed is None:
            self._closed = self.index(live)

    def index(self, live: Iterable[Worker]) -> float:
        """The current or last window's index."""
        if self._closed is not None:
            return self._closed
        return jain_index(
            worker.commits - self._baseline[worker.name] for worker in live if worker.name in self._baseline
        )
