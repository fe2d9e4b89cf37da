"""Staging buffers: where a delta lies until it is complete, and until it is applied. And the waiting room before them.

There are `capacity` buffers; calls that want one wait in a room of bounded length, and get one in the order that the
request queue picks. A holder whose upload stalls while others wait loses its buffer. When a commit is complete its
buffer belongs to the queue, and the applying task frees it. Nobody waits for anything else while holding a buffer.
The event loop's thread only.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout
from gem_server.errors import Reason, Refusal
from gem_server.flow.calls import Call
from gem_server.state.sessions import Session

RETRY_SECONDS = 1.0


class StagingBuffer:
    """A decoded delta (float32[parameter_count]) and the BUFFERs beside it."""

    __slots__ = ("parameters", "rest")

    def __init__(self, layout: Layout) -> None:
        self.parameters: NDArray[np.float32] = np.empty(layout.parameter_count, np.float32)
        self.rest = memoryview(bytearray(layout.buffer_bytes))


class Purpose(Enum):
    """What a call wants a buffer for."""

    COMMIT = "commit"
    INITIALIZE = "initialize"


class Hold:
    """One call's place: in the waiting room first, then at a buffer.

    `buffer` is None for an Initialize, which brings its own memory and only counts.
    """

    __slots__ = ("buffer", "call", "complete", "granted", "progressed_at", "purpose", "session")

    def __init__(self, session: Session, call: Call, purpose: Purpose, granted: "asyncio.Future[None]") -> None:
        self.session = session
        self.call = call
        self.purpose = purpose
        self.granted = granted
        self.buffer: StagingBuffer | None = None
        self.progressed_at = 0.0
        self.complete = False


class StagingPool:
    """The buffers and the waiting room.

    `pick` chooses, among the waiting holds and knowing those that have a buffer, who gets the next free one (None:
    nobody yet). It is the request queue's, because the order of buffers must fit the order of serving.
    """

    def __init__(
        self,
        capacity: int,
        waiting_limit: int,
        pick: Callable[[Sequence[Hold], Sequence[Hold]], Hold | None],
        clock: Callable[[], float],
    ) -> None:
        self.capacity = capacity
        self.waiting_limit = waiting_limit
        self._pick = pick
        self._clock = clock
        self._layout: Layout | None = None
        self._spare: list[StagingBuffer] = []
        self._holding: list[Hold] = []
        self._waiting: list[Hold] = []

    @property
    def free(self) -> int:
        """Buffers that nobody holds."""
        return self.capacity - len(self._holding)

    @property
    def waiting(self) -> int:
        """Calls in the waiting room."""
        return len(self._still_waiting())

    def prepare(self, layout: Layout) -> None:
        """The layout is settled: buffers for commits have its size. They are made when first needed."""
        self._layout = layout

    async def reserve(self, session: Session, call: Call, purpose: Purpose) -> Hold:
        """Wait for a buffer. Raises WAITING_ROOM at once when too many wait already."""
        hold = Hold(session, call, purpose, asyncio.get_running_loop().create_future())
        if self.waiting >= self.waiting_limit:
            raise Refusal(
                Reason.WAITING_ROOM,
                f"{self.waiting} calls are waiting for one of {self.capacity} staging buffers: come back later "
                "(or raise --waiting-room or --staging-buffers)",
                retry_after=RETRY_SECONDS,
            )
        self._waiting.append(hold)
        self.dispatch()
        try:
            await hold.granted
        except BaseException:
            if hold in self._waiting:
                self._waiting.remove(hold)
            else:
                self.release(hold)
            raise
        return hold

    def progressed(self, hold: Hold) -> None:
        """Note that bytes arrived."""
        hold.progressed_at = self._clock()

    def release(self, hold: Hold) -> None:
        """Give a buffer back, and hand it on."""
        self._holding.remove(hold)
        if hold.buffer is not None:
            self._spare.append(hold.buffer)
            hold.buffer = None
        self.dispatch()

    def dispatch(self) -> None:
        """Hand out free buffers. Call it whenever what `pick` looks at has changed."""
        while self._waiting and self.free:
            waiting = self._still_waiting()
            hold = self._pick(waiting, self._holding) if waiting else None
            if hold is None:
                return
            self._waiting.remove(hold)
            self._holding.append(hold)
            if hold.purpose is Purpose.COMMIT:
                hold.buffer = self._take_buffer()
            hold.progressed_at = self._clock()
            hold.granted.set_result(None)

    def refuse_waiting(self, refusal: Refusal, purposes: tuple[Purpose, ...]) -> None:
        """Tell everybody in the waiting room who waits for one of these purposes to go."""
        for hold in [hold for hold in self._waiting if hold.purpose in purposes]:
            hold.call.end(refusal.again())

    def evict_stalled(self, timeout: float, others_wait: bool) -> list[Hold]:
        """End uploads without progress for `timeout` seconds, if anybody waits; returns them."""
        if not (self.waiting or others_wait):
            return []
        limit = self._clock() - timeout
        stalled = [hold for hold in self._holding if not hold.complete and hold.progressed_at <= limit]
        for hold in stalled:
            hold.call.end(
                Refusal(
                    Reason.STALLED,
                    f"no bytes arrived for {timeout:g} s while others waited for the buffer: send the commit again",
                    retry_after=RETRY_SECONDS,
                )
            )
        return stalled

    def end_uploads(self, refusal: Refusal) -> None:
        """End every upload that is not complete (the server drains)."""
        for hold in [hold for hold in self._holding if not hold.complete]:
            hold.call.end(refusal.again())

    def _still_waiting(self) -> list[Hold]:
        """Who waits, without those whose call was ended and has not taken itself away yet."""
        return [hold for hold in self._waiting if not hold.granted.done()]

    def _take_buffer(self) -> StagingBuffer:
        if self._spare:
            return self._spare.pop()
        if self._layout is None:
            raise AssertionError("a commit was staged before the layout was settled")
        return StagingBuffer(self._layout)
