"""When the log says that nobody trains. A decision, no more: it takes the clock, and returns what is to be said."""

# People look at the log long before.
PATIENCE_SECONDS = 60.0


class Desertion:
    """Tells once, each time, that an unfinished run has been without a worker for a minute."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    def look(self, now: float, *, workers: int, finished: bool) -> str | None:
        """Return what is to be said at this moment, if anything.

        Args:
            now: seconds, on any clock, as long as it is the same one each time.
            workers: those that are joined.
            finished: whether the run is.
        """
        if workers or finished:
            self._since, self._told = None, False
        elif self._since is None:
            self._since = now
        elif not self._told and now - self._since >= PATIENCE_SECONDS:
            self._told = True
            return f"no worker has been joined for {PATIENCE_SECONDS:g} s: the run waits for workers"
        return None
