"""Staging buffers for deltas, and a bounded list of calls that wait for one.

When the list is full, the last call in order, which may be the new one, is refused and must retry. Its first request
time is kept, so that it cannot starve. The buffer of a complete commit belongs to the queue. Nothing may wait for a
buffer while it has one.
"""

import asyncio
import statistics
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, PayloadFormat, WireType
from gem_core.aligned import aligned_empty
from gem_core.chunking import Assembler, DecodingAssembler
from gem_core.wire_kernels import COMPILED
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.state.memory import count_buffers
from gem_server.state.sessions import Session

RETRY_SECONDS = 1.0
# An upload is slow if it takes longer than SLOW_SECONDS, and longer than SLOW_FACTOR times the recent median.
SLOW_SECONDS = 2.0
SLOW_FACTOR = 8
# A complete piece waits for the pieces on other shards for this multiple of the time-out.
OTHER_SHARDS_FACTOR = 6
# Number of extra buffers, for slow uploads.
BUFFERS_FOR_THE_SLOW = 1
RECENT_UPLOADS = 16


class StagingBuffer:
    """A decoded delta (float32[parameter_count]), and room for all BUFFERs."""

    __slots__ = ("_sinks", "parameters", "rest")

    def __init__(self, layout: Layout) -> None:
        self.parameters: NDArray[np.float32] = aligned_empty(layout.parameter_count)
        self.rest = memoryview(bytearray(layout.buffer_bytes))
        self._sinks: dict[WireType, DecodingAssembler] = {}

    def sink(self, payload: PayloadFormat) -> DecodingAssembler:
        """Return a reset assembler that writes into this buffer. The payload's BUFFERs begin at the start of `rest`."""
        sink = self._sinks.get(payload.wire_type)
        if sink is None or sink.payload is not payload:
            sink = DecodingAssembler(payload, self.parameters, self.rest[: payload.rest_bytes], COMPILED)
            self._sinks[payload.wire_type] = sink
        sink.restart()
        return sink


class Purpose(Enum):
    """What a buffer is reserved for."""

    COMMIT = "commit"
    INITIALIZE = "initialize"


class BufferLease:
    """The place of a call that waits for a buffer, or has one.

    Attributes:
        buffer: None while the call waits, and for an Initialize.
        asked_at: time of the call's first request.
        aside: whether its buffer is the extra one.
        received: whether the buffer has the whole payload.
        complete: whether the commit is in the queue.
    """

    __slots__ = (
        "aside",
        "asked_at",
        "buffer",
        "call",
        "complete",
        "granted",
        "granted_at",
        "progressed_at",
        "purpose",
        "received",
        "session",
        "sink",
        "taken",
    )

    def __init__(self, session: Session, call: Call, purpose: Purpose) -> None:
        self.session = session
        self.call = call
        self.purpose = purpose
        self.granted: asyncio.Future[None] | None = None
        self.buffer: StagingBuffer | None = None
        self.sink: Assembler | None = None
        self.taken = 0  # bytes at the last check
        self.aside = False
        self.asked_at = 0.0
        self.granted_at = 0.0
        self.progressed_at = 0.0
        self.received = False
        self.complete = False


class GrantOrder(Protocol):
    """Who gets the next buffer; `RequestQueue` implements it."""

    @property
    def is_strict(self) -> bool:
        """Whether sessions commit in turns, so that a free buffer may wait for a certain session."""

    def pick(self, waiting: Sequence[BufferLease], holding: Sequence[BufferLease]) -> BufferLease | None:
        """Choose who gets the next buffer, if anyone."""

    def last(self, waiting: Sequence[BufferLease]) -> BufferLease:
        """Choose the waiting call that would get a buffer last."""


class StagingPool:
    """The buffers, and the calls that wait for one.

    `wanted` is the setting `limits.staging_buffers`, and `waiting_limit` the largest number of waiting calls.
    """

    def __init__(self, wanted: int, waiting_limit: int, order: GrantOrder, clock: Callable[[], float]) -> None:
        self._wanted = wanted
        self.capacity = count_buffers(wanted, None)
        self.waiting_limit = waiting_limit
        self._order = order
        self._clock = clock
        self._recent_seconds: deque[float] = deque(maxlen=RECENT_UPLOADS)
        self._layout: Layout | None = None
        self._spare: list[StagingBuffer] = []
        self._holding: list[BufferLease] = []
        self._waiting: list[BufferLease] = []
        self._promised = 0

    @property
    def free(self) -> int:
        """Number of free buffers without the extra one."""
        return self.capacity - len(self._holding) + self._aside()

    @property
    def waiting(self) -> int:
        """Return the number of calls that wait for a buffer."""
        return len(self._still_waiting())

    def prepare(self, layout: Layout) -> None:
        """Set the layout, which determines how many buffers there are."""
        self._layout = layout
        self.capacity = count_buffers(self._wanted, layout)

    def promise(self) -> bool:
        """Count a buffer as promised to a commit that comes soon, if one is free. The buffer is not reserved."""
        is_spare = not self._waiting and not self._order.is_strict and self.free > self._promised
        self._promised += is_spare
        return is_spare

    def promise_ends(self) -> None:
        """Undo `promise`, when the commit has arrived or will not be sent."""
        self._promised -= 1

    def try_acquire(self, session: Session, call: Call, purpose: Purpose) -> BufferLease | None:
        """Return a buffer if one is free now, else None."""
        if self._waiting:
            return None
        if not self._finds_a_buffer(slow=session.uploads_slowly):
            return None
        hold = BufferLease(session, call, purpose)
        if self._order.pick((hold,), self._holding) is not hold:
            return None
        self._grant(hold)
        return hold

    async def reserve(self, session: Session, call: Call, purpose: Purpose) -> BufferLease:
        """Wait for a buffer. Raises WAITING_ROOM if too many calls are before this one."""
        taken = self.try_acquire(session, call, purpose)
        if taken is not None:
            return taken
        hold = BufferLease(session, call, purpose)
        if session.asked_at is None:
            session.asked_at = self._clock()
        hold.asked_at = session.asked_at
        granted = hold.granted = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= self.waiting_limit <= self.waiting:
            self._make_room_for(hold)
        insort(self._waiting, hold, key=lambda one: one.asked_at)
        self.dispatch()
        try:
            await granted
        except BaseException:
            if hold in self._waiting:
                self._waiting.remove(hold)
            else:
                self.release(hold)
            raise
        return hold

    def received(self, hold: BufferLease) -> None:
        """Record that a payload is complete. The session no longer counts as slow if this upload was fast."""
        seconds = self._clock() - hold.granted_at
        hold.received = True
        hold.session.uploads_slowly &= self._is_slow(seconds)
        self._recent_seconds.append(seconds)

    def release(self, hold: BufferLease) -> None:
        """Release a buffer, and grant it to the next call."""
        self._holding.remove(hold)
        hold.sink = None
        if hold.buffer is not None:
            self._spare.append(hold.buffer)
            hold.buffer = None
        self.dispatch()

    def dispatch(self) -> None:
        """Grant the free buffers. Call this when anything changes that `pick` depends on."""
        while self._waiting:
            waiting = self._candidates()
            hold = self._order.pick(waiting, self._holding) if waiting else None
            if hold is None:
                return
            self._waiting.remove(hold)
            self._grant(hold)
            if hold.granted is not None:
                hold.granted.set_result(None)

    def _grant(self, hold: BufferLease) -> None:
        hold.aside = hold.session.uploads_slowly
        self._holding.append(hold)
        if hold.purpose is Purpose.COMMIT:
            hold.buffer = self._acquire_buffer()
        hold.granted_at = hold.progressed_at = self._clock()
        if hold.granted is None:
            hold.asked_at = hold.granted_at if hold.session.asked_at is None else hold.session.asked_at
        hold.session.asked_at = None

    def refuse_waiting(self, refusal: RefusedError, purposes: tuple[Purpose, ...]) -> None:
        """End calls waiting for these purposes."""
        for hold in [hold for hold in self._waiting if hold.purpose in purposes]:
            hold.call.end(refusal.again())

    def evict_stalled(self, timeout: float, others_wait: bool) -> list[BufferLease]:
        """End uploads without progress for `timeout` seconds, if others wait."""
        now = self._clock()
        for hold in self._holding:
            if hold.sink is not None and hold.sink.received != hold.taken:
                hold.taken, hold.progressed_at = hold.sink.received, now
        if not (self.waiting or others_wait):
            return []
        limit = now - timeout
        limit_of_received = now - OTHER_SHARDS_FACTOR * timeout
        stalled = [
            hold
            for hold in self._holding
            if not _is_received(hold) and hold.progressed_at <= (limit_of_received if hold.received else limit)
        ]
        for hold in stalled:
            what = (
                f"the commit waited {OTHER_SHARDS_FACTOR * timeout:g} s for other servers or the log"
                if hold.received
                else f"no bytes arrived for {timeout:g} s"
            )
            hold.call.end(
                RefusedError(
                    Reason.STALLED,
                    f"{what} while others waited for the buffer: send the commit again",
                    retry_after=RETRY_SECONDS,
                )
            )
        return stalled

    def evict_slow(self) -> list[BufferLease]:
        """End slow uploads if others wait. One of them may continue in the extra buffer instead."""
        if self._order.is_strict or all(hold.session.uploads_slowly for hold in self._still_waiting()):
            return []
        now = self._clock()
        slow = []
        for hold in self._holding:
            if hold.purpose is Purpose.COMMIT and not hold.received:
                hold.session.uploads_slowly |= self._is_slow(now - hold.granted_at)
                if hold.session.uploads_slowly and not hold.aside:
                    slow.append(hold)
        if slow and not self._aside_is_full():
            slow.pop(0).aside = True
            self.dispatch()
        for hold in slow:
            hold.call.end(
                RefusedError(
                    Reason.STALLED,
                    "the upload was much slower than the others' while they waited for the buffer: send the commit "
                    "again, which may take its time then",
                    retry_after=RETRY_SECONDS,
                )
            )
        return slow

    def end_uploads(self, refusal: RefusedError) -> None:
        """End incomplete uploads."""
        for hold in [hold for hold in self._holding if not hold.complete]:
            hold.call.end(refusal.again())

    def _still_waiting(self) -> list[BufferLease]:
        return [hold for hold in self._waiting if _is_waiting(hold)]

    def _make_room_for(self, hold: BufferLease) -> None:
        """Refuse the call that is last in order. Raises WAITING_ROOM if that is `hold`."""
        refusal = RefusedError(
            Reason.WAITING_ROOM,
            f"{self.waiting} calls are waiting for one of {self.capacity} staging buffers: retry later (or raise "
            "limits.waiting_room, or have more limits.staging_buffers)",
            retry_after=RETRY_SECONDS,
        )
        all_of_them = sorted([*self._still_waiting(), hold], key=lambda one: one.asked_at)
        kept_back = [one for one in all_of_them if one.session.uploads_slowly and self._aside_is_full()]
        last = self._order.last(kept_back or all_of_them)
        if last is hold:
            raise refusal
        last.call.end(refusal)

    def _is_slow(self, seconds: float) -> bool:
        if seconds <= SLOW_SECONDS or not self._recent_seconds:
            return False
        return seconds > SLOW_FACTOR * statistics.median(self._recent_seconds)

    def _candidates(self) -> list[BufferLease]:
        finds = {slow: self._finds_a_buffer(slow=slow) for slow in (False, True)}
        return [hold for hold in self._waiting if finds[hold.session.uploads_slowly] and _is_waiting(hold)]

    def _finds_a_buffer(self, *, slow: bool) -> bool:
        if slow:
            return not self._aside_is_full()
        return len(self._holding) < self.capacity or self.free > 0

    def _aside_is_full(self) -> bool:
        return self._aside() >= BUFFERS_FOR_THE_SLOW

    def _aside(self) -> int:
        return len([hold for hold in self._holding if hold.aside])

    def _acquire_buffer(self) -> StagingBuffer:
        if self._spare:
            return self._spare.pop()
        if self._layout is None:
            raise AssertionError("a commit was staged before the layout was settled")
        return StagingBuffer(self._layout)


def _is_received(hold: BufferLease) -> bool:
    """Whether the whole payload is here. First parameters may then still wait for other shards."""
    return hold.complete or (hold.received and hold.purpose is Purpose.INITIALIZE)


def _is_waiting(hold: BufferLease) -> bool:
    return hold.granted is not None and not hold.granted.done()
