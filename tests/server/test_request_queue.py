"""The order of serving, and of granting buffers."""

import asyncio
from collections.abc import Callable

import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.flow.request_queue import FifoQueue, QueueClosedError, StrictQueue
from gem_server.flow.requests import PullRequest, SharedPullRequest
from gem_server.flow.staging_pool import BufferLease, Purpose, StagingPool
from gem_server.flow.turns import RankTurns
from gem_server.state.sessions import Session

from .builders import Registry, layout


class Turns:
    """A round-robin queue over real sessions, and a pool that grants in its order."""

    def __init__(self, sessions: int, buffers: int = 2) -> None:
        self.registry = Registry()
        self.sessions = [self.registry.join(number) for number in range(1, sessions + 1)]
        self.started = True
        self.queue = StrictQueue(RankTurns(self.registry.sessions.live), lambda: self.started)
        self.pool = StagingPool(buffers, 10, self.queue, lambda: 0.0)
        self.pool.prepare(layout())

    def put(self, session: Session) -> PullRequest:
        request = PullRequest(session, Call(), None)
        self.queue.put(request)
        return request

    def wants_buffer(self, session: Session) -> "asyncio.Task[BufferLease]":
        async def reserve() -> BufferLease:
            return await self.pool.reserve(session, Call(), Purpose.COMMIT)

        return asyncio.create_task(reserve())


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_fifo_serves_in_the_order_of_completion() -> None:
    queue = FifoQueue()
    requests = [SharedPullRequest(None, Call(), None) for _ in range(3)]
    for request in requests:
        queue.put(request)
    assert [await queue.get() for _ in requests] == requests


async def test_closed_queue_serves_what_is_complete_and_then_ends() -> None:
    queue = FifoQueue()
    request = SharedPullRequest(None, Call(), None)
    queue.put(request)
    queue.close()
    assert await queue.get() is request
    with pytest.raises(QueueClosedError):
        await queue.get()


async def test_round_robin_waits_for_the_session_whose_turn_it_is() -> None:
    turns = Turns(3)
    a, b, c = turns.sessions
    late = [turns.put(c), turns.put(b)]
    assert turns.queue.next() is None
    first = turns.put(a)
    assert [turns.queue.next() for _ in range(3)] == [first, late[1], late[0]]
    turns.put(b)
    assert turns.queue.next() is None  # the turn is a's again


async def test_round_robin_starts_only_when_training_does() -> None:
    turns = Turns(1)
    turns.started = False
    request = turns.put(turns.sessions[0])
    assert turns.queue.next() is None
    turns.started = True
    assert turns.queue.next() is request


async def test_turn_of_an_ended_session_passes_on() -> None:
    turns = Turns(2)
    a, b = turns.sessions
    request = turns.put(b)
    assert turns.queue.next() is None
    turns.registry.sessions.leave(a)
    assert turns.queue.next() is request


async def test_complete_request_of_an_ended_session_is_still_served() -> None:
    turns = Turns(2)
    _, b = turns.sessions
    request = turns.put(b)
    turns.registry.sessions.leave(b)
    assert turns.queue.next() is request


async def test_draining_round_robin_does_not_wait_for_turns() -> None:
    turns = Turns(3)
    requests = [turns.put(turns.sessions[2]), turns.put(turns.sessions[1])]
    turns.queue.close()
    assert [await turns.queue.get(), await turns.queue.get()] == requests[::-1]


async def test_what_is_no_sessions_turn_is_served_at_once() -> None:
    turns = Turns(2)
    turns.put(turns.sessions[1])
    shared = SharedPullRequest(None, Call(), None)
    turns.queue.put(shared)
    assert turns.queue.next() is shared


async def test_buffers_are_granted_in_the_order_of_turns_so_the_pool_cannot_fill_with_waiting_commits() -> None:
    turns = Turns(3, buffers=1)
    a, b, c = turns.sessions
    third, second = turns.wants_buffer(c), turns.wants_buffer(b)
    await settled()
    assert not third.done()
    assert not second.done()
    first = turns.wants_buffer(a)
    await settled()
    assert first.done()
    turns.pool.release(first.result())
    turns.queue.sessions_changed()
    await settled()
    assert not second.done()  # a's commit was not served: its turn, and the buffer, are still a's
    again = turns.wants_buffer(a)
    await settled()
    assert again.done()
    for task in (second, third):
        task.cancel()


def pool(buffers: int = 1, waiting: int = 10, clock: Callable[[], float] = lambda: 0.0) -> StagingPool:
    made = StagingPool(buffers, waiting, FifoQueue(), clock)
    made.prepare(layout())
    return made


async def test_waiting_room_has_a_bound_and_says_when_to_come_back() -> None:
    staging, session = pool(waiting=1), Registry().join(1)
    await staging.reserve(session, Call(), Purpose.COMMIT)
    waiting = asyncio.create_task(_reserve(staging, session))
    await settled()
    with pytest.raises(RefusedError) as refused:
        await staging.reserve(session, Call(), Purpose.COMMIT)
    assert refused.value.reason is Reason.WAITING_ROOM
    assert refused.value.retry_after is not None
    waiting.cancel()


async def test_caller_that_gives_up_while_waiting_leaves_no_trace() -> None:
    staging, session = pool(), Registry().join(1)
    held = await staging.reserve(session, Call(), Purpose.COMMIT)
    waiting = asyncio.create_task(_reserve(staging, session))
    await settled()
    waiting.cancel()
    await settled()
    assert staging.waiting == 0
    staging.release(held)
    assert staging.free == 1


async def test_caller_that_is_cancelled_in_the_moment_of_the_grant_gives_the_buffer_back() -> None:
    staging, session = pool(), Registry().join(1)
    held = await staging.reserve(session, Call(), Purpose.COMMIT)
    waiting = asyncio.create_task(_reserve(staging, session))
    await settled()
    staging.release(held)
    waiting.cancel()
    await settled()
    assert staging.free == 1


@pytest.mark.parametrize("others_wait", [False, True])
async def test_stalled_holder_loses_its_buffer_only_if_others_wait(others_wait: bool) -> None:
    now = 0.0
    staging, session = pool(clock=lambda: now), Registry().join(1)

    async def stall() -> None:
        call = Call()
        async with call.ending():
            await staging.reserve(session, call, Purpose.COMMIT)
            await asyncio.Event().wait()

    holder = asyncio.create_task(stall())
    await settled()
    waiting = asyncio.create_task(_reserve(staging, session)) if others_wait else None
    await settled()
    now = 9.9
    assert staging.evict_stalled(10, others_wait=False) == []
    now = 10.0
    assert len(staging.evict_stalled(10, others_wait=False)) == (1 if others_wait else 0)
    await settled()
    assert holder.done() is others_wait
    if waiting is not None:
        error = holder.exception()
        assert isinstance(error, RefusedError)
        assert error.reason is Reason.STALLED
        assert str(error).startswith("no bytes arrived for 10 s")
        waiting.cancel()
    else:
        holder.cancel()


@pytest.mark.parametrize(("purpose", "what"), [(Purpose.COMMIT, "complete"), (Purpose.INITIALIZE, "received")])
async def test_complete_upload_is_never_evicted(purpose: Purpose, what: str) -> None:
    """First parameters may wait for other shards."""
    now = 0.0
    staging, session = pool(clock=lambda: now), Registry().join(1)
    hold = await staging.reserve(session, Call(), purpose)
    setattr(hold, what, True)
    now = 1000.0
    assert staging.evict_stalled(10, others_wait=True) == []


async def test_a_commit_that_waits_for_other_shards_may_take_longer() -> None:
    now = 0.0
    staging, session = pool(clock=lambda: now), Registry().join(1)

    async def wait_for_others() -> None:
        call = Call()
        async with call.ending():
            staging.received(await staging.reserve(session, call, Purpose.COMMIT))
            await asyncio.Event().wait()

    holder = asyncio.create_task(wait_for_others())
    await settled()
    now = 59.0
    assert staging.evict_stalled(10, others_wait=True) == []
    now = 60.0
    assert len(staging.evict_stalled(10, others_wait=True)) == 1
    with pytest.raises(RefusedError, match="the commit waited 60 s for other servers or the log while"):
        await holder


async def _reserve(staging: StagingPool, session: Session) -> BufferLease:
    return await staging.reserve(session, Call(), Purpose.COMMIT)
