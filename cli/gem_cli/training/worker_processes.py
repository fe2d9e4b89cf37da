"""The worker processes of a run, and which of them are started again.

A worker is lost when its process was killed, or failed after it had joined the run. A lost worker is started again
under its own name, so that its rank returns, after a pause that grows from one failure to the next. One that fails
again and again, because of an error in its script, is given up. A worker that ends with exit code 0 or has spent its
budget has done its work, and one that fails before it has ever joined would fail again: none of them is started again.
The caller knows whether a worker has joined or spent its budget, and decides by calling `schedule_restart`.

`WorkerProcesses` belongs to one thread. It reads the clock that it is given, and starts processes by calling `start`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from gem_cli.training.children import Child

# Seconds before each attempt to start a worker again.
PAUSES = (1.0, 3.0, 9.0)
# A worker that ran for so long has not failed "again": its attempts count from the start.
STABLE_SECONDS = 300.0
# Shells report a process that a signal ended by 128 + the signal's number.
_SIGNAL_CODES = 128


@dataclass(slots=True)
class _Slot:
    child: Child
    started_at: float
    is_seen: bool = False  # its end was reported by `ended`
    due_at: float | None = None  # when it is started again
    attempts: int = 0  # since it ran for STABLE_SECONDS
    restarts: int = 0


def was_killed(exit_code: int) -> bool:
    """Whether a signal ended the process, or one that it waited for as a shell does."""
    return exit_code < 0 or exit_code > _SIGNAL_CODES


class WorkerProcesses:
    """Processes of workers, by number. `start` starts the worker of a number; what it raises is passed on."""

    def __init__(self, start: Callable[[int], Child], clock: Callable[[], float] = time.monotonic) -> None:
        self._start = start
        self._clock = clock
        self._slots: list[_Slot] = []

    def start_all(self, count: int) -> None:
        """Start workers 0 to `count` - 1."""
        for index in range(count):
            self._slots.append(_Slot(self._start(index), self._clock()))

    @property
    def children(self) -> list[Child]:
        """The newest process of each worker, by number."""
        return [slot.child for slot in self._slots]

    @property
    def restarts(self) -> dict[str, int]:
        """How often each worker was started again, by name; workers that never were are left out."""
        return {slot.child.name: slot.restarts for slot in self._slots if slot.restarts}

    @property
    def count_active(self) -> int:
        """Number of workers that run or are about to be started again."""
        return sum(slot.child.running or slot.due_at is not None for slot in self._slots)

    def ended(self) -> list[int]:
        """Numbers of the workers whose processes have ended since the last call."""
        found = [index for index, slot in enumerate(self._slots) if not slot.is_seen and not slot.child.running]
        for index in found:
            self._slots[index].is_seen = True
        return found

    def schedule_restart(self, index: int) -> float | None:
        """Have an ended worker started again; return the seconds until then, or None if it is given up."""
        slot, now = self._slots[index], self._clock()
        if now - slot.started_at >= STABLE_SECONDS:
            slot.attempts = 0
        if slot.attempts == len(PAUSES):
            return None
        pause = PAUSES[slot.attempts]
        slot.attempts += 1
        slot.due_at = now + pause
        return pause

    def attempts(self, index: int) -> int:
        """Number of attempts to start the worker again, since it last ran for `STABLE_SECONDS`."""
        return self._slots[index].attempts

    def start_due(self) -> None:
        """Start the workers whose pause is over."""
        now = self._clock()
        for index, slot in enumerate(self._slots):
            if slot.due_at is not None and now >= slot.due_at:
                slot.due_at = None
                slot.child = self._start(index)
                slot.started_at, slot.is_seen = now, False
                slot.restarts += 1

    def cancel_restarts(self) -> list[int]:
        """Start none of the workers that wait for it; return their numbers."""
        waiting = [index for index, slot in enumerate(self._slots) if slot.due_at is not None]
        for index in waiting:
            self._slots[index].due_at = None
        return waiting
