"""Garbage collection after a session ended.

A cancelled call's frames and exception form a cycle that keeps model-sized arrays alive.
"""

import asyncio
import gc

# Calls of an ended session end within this time.
SOON_SECONDS = 0.3


class Sweeper:
    """Collects garbage. Belongs to one event loop."""

    def __init__(self) -> None:
        self._due: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Schedule a collection."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(SOON_SECONDS, self._sweep)

    def stop(self) -> None:
        """Cancel a scheduled collection."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _sweep(self) -> None:
        self._due = None
        gc.collect()


def leave_the_old_alone() -> None:
    """Exclude living objects from later collections."""
    gc.collect()
    gc.freeze()
