"""Warning for a run without workers."""

PATIENCE_SECONDS = 60.0


class Desertion:
    """Warns of an unfinished run without workers."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    def look(self, now: float, *, workers: int, finished: bool) -> str | None:
        """Return the warning to log, if any. `now` in seconds."""
        if workers or finished:
            self._since, self._told = None, False
        elif self._since is None:
            self._since = now
        elif not self._told and now - self._since >= PATIENCE_SECONDS:
            self._told = True
            return f"no worker has been joined for {PATIENCE_SECONDS:g} s: the run waits for workers"
        return None
