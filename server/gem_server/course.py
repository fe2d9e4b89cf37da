"""Times of the run's progress."""

from collections.abc import Callable

from gem_server.state.run import RunState


class Course:
    """Times in seconds on `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._training_since: float | None = None
        self.finished_since: float | None = None
        self.last_join: float | None = None

    def note(self, state: RunState) -> None:
        """Record a change of state."""
        if state is RunState.TRAINING:
            self._training_since = self._clock()
        elif state is RunState.FINISHED:
            self.finished_since = self._clock()

    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started_at

    def run_seconds(self) -> float:
        """Seconds of training in this process."""
        if self._training_since is None:
            return 0.0
        return (self._clock() if self.finished_since is None else self.finished_since) - self._training_since
