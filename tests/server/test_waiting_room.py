"""A full waiting room: who is sent away, and that nobody is sent away for ever."""

import asyncio

import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.flow.request_queue import FifoQueue, StrictQueue
from gem_server.flow.staging_pool import BufferLease, GrantOrder, Purpose, StagingPool
from gem_server.flow.turns import RankTurns
from gem_server.state.sessions import Session

from .builders import Registry, layout


class Room:
    """One buffer, and two places to wait for it; time stands still unless it is told."""

    def __init__(self, order: GrantOrder) -> None:
        self.now = 0.0
        self.pool = StagingPool(1, 2, order, lambda: self.now)
        self.pool.prepare(layout())

    async def asks(self, session: Session) -> "asyncio.Task[BufferLease]":
        """The session asks for a buffer, a second after the one before; the task ends with it, or with a refusal."""
        self.now += 1

        async def reserve() -> BufferLease:
            call = Call()
            async with call.ending():
                return await self.pool.reserve(session, call, Purpose.COMMIT)

        task = asyncio.create_task(reserve())
        await settled()
        return task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def sent_away(task: "asyncio.Task[BufferLease]") -> bool:
    if not task.done():
        return False
    error = task.exception()
    assert isinstance(error, RefusedError)
    assert error.reason is Reason.WAITING_ROOM
    assert error.retry_after is not None
    return True


async def test_a_buffer_knows_when_its_commit_asked_first() -> None:
    a, b, c, d = (Registry().join(number) for number in range(1, 5))
    room = Room(FifoQueue())
    held = (await room.asks(a)).result()
    assert held.asked_at == room.now
    waiting, *_ = await room.asks(b), await room.asks(c)
    assert sent_away(await room.asks(d))
    room.now += 10
    room.pool.release(held)
    assert (await waiting).asked_at == 2.0
    lease = Room(FifoQueue()).pool.try_acquire(d, Call(), Purpose.COMMIT)
    assert lease is not None
    assert lease.asked_at == 4.0


async def test_who_was_sent_away_has_its_place_of_then_when_it_comes_back() -> None:
    a, b, c, d, e = (Registry().join(number) for number in range(1, 6))
    room = Room(FifoQueue())
    held = (await room.asks(a)).result()
    second, third = await room.asks(b), await room.asks(c)
    assert sent_away(await room.asks(d))
    room.pool.release(held)
    held = await second
    newcomer = await room.asks(e)
    assert not newcomer.done()
    again = await room.asks(d)
    assert sent_away(newcomer)
    assert not again.done()
    room.pool.release(held)
    room.pool.release(await third)
    assert (await again).session is d


async def test_who_comes_back_is_served_before_those_who_asked_after_it() -> None:
    a, b, c, d, e = (Registry().join(number) for number in range(1, 6))
    room = Room(FifoQueue())
    held = (await room.asks(a)).result()
    second, third = await room.asks(b), await room.asks(c)
    assert sent_away(await room.asks(d))
    room.pool.release(held)
    newcomer = await room.asks(e)
    room.pool.release(await second)
    again = await room.asks(d)
    room.pool.release(await third)
    assert (await again).session is d
    assert not newcomer.done()
    newcomer.cancel()


async def test_who_was_served_asks_as_a_newcomer() -> None:
    a, b, c = (Registry().join(number) for number in range(1, 4))
    room = Room(FifoQueue())
    held = (await room.asks(a)).result()
    second, third = await room.asks(b), await room.asks(c)
    room.pool.release(held)
    held = await second
    again = await room.asks(a)
    room.pool.release(held)
    assert (await third).session is c
    assert not again.done()
    again.cancel()


async def test_room_full_of_those_whose_turn_is_not_yet_lets_in_the_one_whose_turn_it_is() -> None:
    """Or nobody would move for ever: the room waits for its turn, and that is at the door."""
    registry = Registry()
    sessions = [registry.join(number) for number in range(1, 5)]
    room = Room(StrictQueue(RankTurns(registry.sessions.live), lambda: True))
    third, fourth = await room.asks(sessions[2]), await room.asks(sessions[3])
    assert not third.done()
    first = await room.asks(sessions[0])
    assert first.result().session is sessions[0]
    assert sent_away(fourth)
    assert not third.done()
    third.cancel()


@pytest.mark.parametrize(
    ("wanted", "elements", "places"),
    [(0, 2_048, 128), (0, 10, 256), (0, 65_536, 4), (0, 4_194_304, 4), (1, 2_048, 1), (6, 4_194_304, 6)],
)
async def test_so_many_commits_of_a_model_are_under_way_at_once(wanted: int, elements: int, places: int) -> None:
    """Where nobody has said how many: of small models as many as 1 MiB holds."""
    model = layout(elements)
    pool = StagingPool(wanted, 1_000, FifoQueue(), lambda: 0.0)
    pool.prepare(model)
    registry = Registry(max_sessions=1_000)
    sessions = [registry.join(number, model=model) for number in range(1, places + 2)]
    held = [pool.try_acquire(session, Call(), Purpose.COMMIT) for session in sessions[:-1]]
    assert None not in held
    assert pool.try_acquire(sessions[-1], Call(), Purpose.COMMIT) is None
    assert (pool.capacity, pool.free) == (places, 0)
