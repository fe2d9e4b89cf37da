"""Uploads that are much slower than the others: they give way, and still get through."""

import asyncio
from collections.abc import Sequence

import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.flow.request_queue import FifoQueue, RequestQueue, StrictQueue
from gem_server.flow.staging_pool import SLOW_FACTOR, SLOW_SECONDS, BufferLease, Purpose, StagingPool
from gem_server.flow.turns import RankTurns
from gem_server.state.sessions import Session

from .builders import Registry, layout

LONG = SLOW_SECONDS + 0.1


class Upload:
    """A call that has asked for a buffer, and holds it until it is told."""

    def __init__(self, pool: StagingPool, session: Session) -> None:
        self._pool = pool
        self.hold: BufferLease | None = None
        self._task = asyncio.create_task(self._run(session))
        # Most tests do not ask why it ended; asyncio would tell whatever test runs when it is collected.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, session: Session) -> None:
        call = Call()
        async with call.ending():
            self.hold = await self._pool.reserve(session, call, Purpose.COMMIT)
            try:
                await asyncio.Event().wait()
            finally:
                self._pool.release(self.hold)

    @property
    def has_buffer(self) -> bool:
        return self.hold is not None and not self._task.done()

    @property
    def ended(self) -> bool:
        """Whether it lost its buffer."""
        if not self._task.done():
            return False
        error = self._task.exception()
        assert isinstance(error, RefusedError)
        assert error.reason is Reason.STALLED
        assert error.retry_after is not None
        return True

    async def arrives(self) -> None:
        """The whole payload is here, and applied."""
        assert self.hold is not None
        self._pool.received(self.hold)
        await self.goes()

    async def goes(self) -> None:
        self._task.cancel()
        await settled()


class Uploads:
    """Four buffers; uploads here take a tenth of a second."""

    def __init__(self, order: RequestQueue | None = None) -> None:
        self.now = 0.0
        self.pool = StagingPool(4, 100, FifoQueue() if order is None else order, lambda: self.now)
        self.pool.prepare(layout())

    async def usual(self, session: Session, seconds: float = 0.1) -> None:
        (upload,) = await self.start([session])
        self.now += seconds
        await upload.arrives()

    async def start(self, sessions: Sequence[Session]) -> list[Upload]:
        uploads = [Upload(self.pool, session) for session in sessions]
        await settled()
        return uploads

    async def evict(self) -> int:
        evicted = len(self.pool.evict_slow())
        await settled()
        return evicted


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def joined(number: int) -> list[Session]:
    registry = Registry()
    return [registry.join(index) for index in range(1, number + 1)]


async def test_slow_uploads_that_others_wait_for_lose_their_buffers_but_for_one() -> None:
    *slow, fast = joined(5)
    uploads = Uploads()
    await uploads.usual(fast)
    held = await uploads.start(slow)
    (waiting,) = await uploads.start([fast])
    assert await uploads.evict() == 0
    uploads.now += LONG
    assert await uploads.evict() == 3
    assert [upload.ended for upload in held] == [False, True, True, True]
    assert waiting.has_buffer
    await waiting.goes()
    await held[0].goes()


async def test_slow_upload_goes_aside_and_whoever_waits_has_its_buffer() -> None:
    slow, *others, fast = joined(5)
    uploads = Uploads()
    await uploads.usual(fast)
    held = await uploads.start([slow])
    uploads.now += LONG
    held += await uploads.start(others)
    (waiting,) = await uploads.start([fast])
    assert not waiting.has_buffer
    assert await uploads.evict() == 0
    assert waiting.has_buffer
    assert held[0].has_buffer
    for upload in (*held, waiting):
        await upload.goes()
    assert uploads.pool.free == 4


async def test_slow_ones_that_come_back_take_turns_and_leave_the_other_buffers_free() -> None:
    *slow, fast = joined(5)
    uploads = Uploads()
    await uploads.usual(fast)
    held = await uploads.start(slow)
    (waiting,) = await uploads.start([fast])
    uploads.now += LONG
    await uploads.evict()
    again = await uploads.start(slow[1:])
    assert [upload.has_buffer for upload in again] == [False, False, False]
    assert uploads.pool.free == 3
    uploads.now += 100
    assert await uploads.evict() == 0
    await held[0].arrives()
    assert [upload.has_buffer for upload in again] == [True, False, False]
    for upload in (waiting, *again):
        await upload.goes()


async def test_slow_one_that_uploads_in_the_usual_time_is_slow_no_more() -> None:
    *slow, fast = joined(5)
    uploads = Uploads()
    await uploads.usual(fast)
    held = await uploads.start(slow)
    waiting = await uploads.start([fast])
    uploads.now += LONG
    await uploads.evict()
    assert slow[0].uploads_slowly
    assert slow[1].uploads_slowly
    await held[0].arrives()
    await uploads.usual(slow[1])
    assert slow[0].uploads_slowly
    assert not slow[1].uploads_slowly
    await waiting[0].goes()


@pytest.mark.parametrize("usual", [LONG / SLOW_FACTOR, None])
async def test_nobody_is_slow_where_all_take_as_long_or_nobody_has_shown_how_long(usual: float | None) -> None:
    *sessions, other = joined(5)
    uploads = Uploads()
    if usual is not None:
        await uploads.usual(other, usual)
    held = [*await uploads.start(sessions), *await uploads.start([other])]
    uploads.now += LONG
    assert await uploads.evict() == 0
    for upload in held:
        await upload.goes()


async def test_slow_upload_that_nobody_waits_for_goes_on() -> None:
    *slow, fast = joined(5)
    uploads = Uploads()
    await uploads.usual(fast)
    held = await uploads.start(slow)
    uploads.now += LONG
    assert await uploads.evict() == 0
    for upload in held:
        await upload.goes()


async def test_slow_upload_whose_turn_it_is_is_waited_for() -> None:
    registry = Registry()
    sessions = [registry.join(number) for number in range(1, 6)]
    uploads = Uploads(StrictQueue(RankTurns(registry.sessions.live), lambda: True))
    await uploads.usual(sessions[0])
    held = await uploads.start(sessions)
    assert [upload.has_buffer for upload in held] == [True, True, True, True, False]
    uploads.now += LONG
    assert await uploads.evict() == 0
    for upload in held:
        await upload.goes()


async def test_payload_that_is_here_is_not_slow_however_long_it_waits_for_room_on_the_disk() -> None:
    *sessions, fast = joined(5)
    uploads = Uploads()
    await uploads.usual(fast)
    held = await uploads.start(sessions)
    waiting = await uploads.start([fast])
    for upload in held:
        assert upload.hold is not None
        uploads.pool.received(upload.hold)
    uploads.now += LONG
    assert await uploads.evict() == 0
    for upload in (*held, *waiting):
        await upload.goes()
