"""Finds workers that fail by the same error again, which another start would not mend.

A script with an error in its code ends at the same place each time. One that was killed, or lost its server, is worth
several attempts, and so is one that trained in between. Where a script failed is known from the traceback that Python
writes last; a worker in another language, or one that a signal ended, has none, and is never found here.
"""

from dataclasses import dataclass

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = '  File "'
# gemps's own error of a server that does not answer.
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
    """The last failure of each worker, and how many commits it had made by then."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Failure, int]] = {}

    def add(self, worker: str, log: str, commits: int) -> str:
        """Take note of a failed process.

        Args:
            worker: its name.
            log: what the process wrote.
            commits: of the worker in this run, in all its processes.

        Returns:
            The error's line if the process before it failed at the same place, and the worker has committed nothing
            since; else an empty text.
        """
        failure, before = failure_in(log), self._last.pop(worker, None)
        if failure is None or failure.kind.endswith(_LOST_CONNECTIONS):
            return ""
        self._last[worker] = failure, commits
        if before is None or before[1] != commits:
            return ""
        return failure.text if (before[0].frames, before[0].kind) == (failure.frames, failure.kind) else ""


def failure_in(log: str) -> Failure | None:
    """The failure that ends a log; None if there is no complete traceback in it."""
    start = log.rfind(_TRACEBACK)
    if start < 0:
        return None
    lines = log[start:].splitlines()[1:]
    frames = tuple(line for line in lines if line.startswith(_FRAME))
    text = next((line for line in lines if line and not line.startswith(" ")), "")
    return Failure(frames, text.partition(":")[0], text) if frames and text else None
