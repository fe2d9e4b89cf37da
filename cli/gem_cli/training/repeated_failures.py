"""Finds workers that fail again with the same error, so that another start would not help.

A script with an error in its code fails at the same place each time. One that was killed, or that lost its server,
should be started again several times, and so should one that trained in between. The place of a failure is known from
the traceback at the end of the log. A worker in another language, or one that a signal ended, has no traceback, and is
never found here.
"""

from dataclasses import dataclass

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = '  File "'
# The error that gemps raises when the server does not answer.
_LOST_CONNECTIONS = ("ServerUnavailableError",)


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a Python process failed.

    Attributes:
        frames: file, line and function of each frame, as in the traceback.
        kind: the error's class.
        text: the traceback's last line, for people.
    """

    frames: tuple[str, ...]
    kind: str
    text: str


class RepeatedFailures:
    """Remembers the last failure of each worker, and the number of its commits at that time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Failure, int]] = {}

    def add(self, worker: str, log: str, commits: int) -> str:
        """Record a failed process.

        Args:
            worker: the worker's name.
            log: what the process wrote.
            commits: the worker's commits in this run, of all its processes.

        Returns:
            The error's line if the worker's process before this one failed at the same place, and the worker has
            committed nothing since. Otherwise an empty text.
        """
        failure, before = failure_in(log), self._last.pop(worker, None)
        if failure is None or failure.kind.endswith(_LOST_CONNECTIONS):
            return ""
        self._last[worker] = failure, commits
        if before is None or before[1] != commits:
            return ""
        return failure.text if (before[0].frames, before[0].kind) == (failure.frames, failure.kind) else ""


def failure_in(log: str) -> Failure | None:
    """Return the failure at the end of a log. None if the log has no complete traceback."""
    start = log.rfind(_TRACEBACK)
    if start < 0:
        return None
    lines = log[start:].splitlines()[1:]
    frames = tuple(line for line in lines if line.startswith(_FRAME))
    text = next((line for line in lines if line and not line.startswith(" ")), "")
    return Failure(frames, text.partition(":")[0], text) if frames and text else None
