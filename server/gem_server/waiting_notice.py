"""When to say again that something is waited for, and what a server logs while it starts."""

# Whoever starts a server recognises this phase of its start by this text in the log.
PREPARING_KERNELS = "preparing its kernels: Numba compiles them once on a machine, and later starts load them"
# What is waited for is said after this many seconds, and again after twice as many, and so on.
FIRST_SECONDS = 10.0
LONGEST_SECONDS = 3600.0


class WaitingNotice:
    """Decides when to say that something is waited for: at growing intervals, for as long as it lasts."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._due = 0.0
        self._interval = 0.0

    def check(self, now: float, *, waits: bool) -> float | None:
        """Return for how many seconds it has lasted, if that is to be said now. `now` is in seconds."""
        if not waits:
            self._since = None
            return None
        if self._since is None:
            self._since, self._interval = now, FIRST_SECONDS
            self._due = now + self._interval
        if now < self._due:
            return None
        self._interval = min(2 * self._interval, LONGEST_SECONDS)
        self._due = now + self._interval
        return now - self._since
