"""The order of a trace, forced upon sessions that come as they like."""

import asyncio
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from gem_server.errors import StartupError
from gem_server.flow.calls import Call
from gem_server.flow.request_queue import StrictQueue
from gem_server.flow.requests import CommitRequest, PullRequest
from gem_server.flow.staging_pool import BufferLease, Purpose, StagingPool
from gem_server.flow.turns import TraceTurns
from gem_server.state.buffers import NO_BUFFERS
from gem_server.state.ledger import Content
from gem_server.state.worker_snapshots import WorkerSnapshots
from gem_server.version import Version

from gem_core import create_rule
from gem_trace import read_order
from tests.trace.orders import write_order

from .builders import Registry, layout


class Followed:
    """A queue that follows an order, with real sessions of the ranks 0, 1, ..., and a pool that grants in its order."""

    def __init__(self, folder: Path, order: str, sessions: int = 3, buffers: int = 2) -> None:
        self.registry = Registry()
        self.sessions = [self.registry.join(number) for number in range(1, sessions + 1)]
        self.unreserved = math.inf
        self.turns = TraceTurns(
            self.registry.sessions.live, read_order(write_order(folder / "the.trace", order)), "the.trace"
        )
        self.queue = StrictQueue(self.turns, lambda: True, lambda: self.unreserved)
        self.pool = StagingPool(buffers, 10, self.queue, lambda: 0.0)
        self.pool.prepare(layout())

    def pulls(self, *ranks: int) -> None:
        for rank in ranks:
            self.queue.put(PullRequest(self.sessions[rank], Call(), None))

    def commits(self, *ranks: int) -> None:
        for rank in ranks:
            session = self.sessions[rank]
            hold = BufferLease(session, Call(), Purpose.COMMIT)
            content = Content(1, 32, 0)
            self.queue.put(CommitRequest(session, hold.call, hold, 1, Version(1, 1), content, None, 1, 1, 0.05))

    def holds_parameters(self, *ranks: int) -> None:
        """As the applying task leaves a session whose pull it has served."""
        for rank in ranks:
            rule = create_rule("gem")
            state = rule.new_worker(np.zeros(8, np.float32))
            self.sessions[rank].held = WorkerSnapshots(rule, state, Version(1, 1), NO_BUFFERS, 1)

    def served(self) -> str:
        """Everything that can be served now."""
        found = []
        while (request := self.queue.next()) is not None:
            assert request.session is not None
            rank = request.session.worker.rank
            if isinstance(request, PullRequest):
                self.holds_parameters(rank)
            found.append(f"{'p' if isinstance(request, PullRequest) else 'c'}{rank}")
        return " ".join(found)

    async def wants_buffer(self, rank: int) -> "asyncio.Task[BufferLease]":
        async def reserve() -> BufferLease:
            return await self.pool.reserve(self.sessions[rank], Call(), Purpose.COMMIT)

        task = asyncio.create_task(reserve())
        await settled()
        return task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_pulls_and_commits_are_served_in_the_order_of_the_trace(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "p1 p0 c1 p2 c0 c2 c1")
    followed.pulls(2, 0)
    assert followed.served() == ""
    followed.pulls(1)
    assert followed.served() == "p1 p0"
    followed.commits(0)
    assert followed.served() == ""
    followed.commits(1)
    assert followed.served() == "c1 p2 c0"
    followed.commits(1)
    assert followed.served() == ""
    followed.commits(2)
    assert followed.served() == "c2 c1"


async def test_turns_of_a_session_that_ended_pass_on(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "p0 p1 p2 c0 c1 c1 c2 c1 c0")
    followed.pulls(0, 1, 2)
    followed.commits(0, 2)
    assert followed.served() == "p0 p1 p2 c0"
    followed.registry.sessions.leave(followed.sessions[1])
    assert followed.served() == "c2"
    followed.commits(0)
    assert followed.served() == "c0"


async def test_first_pull_of_the_trace_passes_on_where_the_session_has_parameters(tmp_path: Path) -> None:
    """In the traced run rank 0 had to join again."""
    followed = Followed(tmp_path, "p0 p1 c0 p0 c1 c0")
    followed.pulls(0, 1)
    followed.commits(0, 1)
    assert followed.served() == "p0 p1 c0 c1"


async def test_pull_that_is_no_turn_leaves_its_workers_turn_to_the_commit(tmp_path: Path) -> None:
    """Here rank 0 had to pull again."""
    followed = Followed(tmp_path, "p0 p1 c1 c0 c1")
    followed.pulls(0, 1)
    assert followed.served() == "p0 p1"
    followed.pulls(0)
    assert followed.served() == ""
    followed.commits(1, 1)
    assert followed.served() == "c1 p0"
    followed.commits(0)
    assert followed.served() == "c0 c1"


async def test_pull_whose_caller_has_gone_leaves_its_turn_to_the_next(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "p0 p1 c1")
    gone = PullRequest(followed.sessions[0], Call(), None)
    gone.done.cancel()
    followed.queue.put(gone)
    followed.pulls(1)
    assert followed.queue.next() is gone
    assert followed.served() == ""
    followed.pulls(0)
    assert followed.served() == "p0 p1"


async def test_behind_the_order_requests_are_served_as_they_come_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    followed = Followed(tmp_path, "p0 p1 p2 c1 c0")
    followed.pulls(2, 1, 0)
    followed.commits(2, 0, 1)
    assert followed.queue.is_strict
    assert followed.served() == "p0 p1 p2 c1 c0 c2"
    followed.commits(1, 0)
    assert followed.served() == "c1 c0"
    assert not followed.queue.is_strict
    assert [record.message for record in caplog.records if "is over" in record.message] == [
        "the order of the.trace is over: from here on requests are served as they come"
    ]


async def test_workers_without_a_turn_wait_for_the_end_of_the_order(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "p0 c0 c0", buffers=2)
    followed.pulls(2, 0)
    followed.commits(0)
    assert followed.served() == "p0 c0"
    waiting = await followed.wants_buffer(1)
    assert not waiting.done()
    followed.commits(0)
    assert followed.served() == "c0 p2"
    followed.pool.dispatch()
    await settled()
    assert waiting.done()


async def test_buffers_are_granted_in_the_order_of_commits_whatever_the_pulls(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "p0 p1 c1 p2 c0 c2", buffers=1)
    followed.pulls(0, 1)
    assert followed.served() == "p0 p1"
    zero = await followed.wants_buffer(0)
    assert not zero.done()
    one = await followed.wants_buffer(1)
    assert one.done()
    followed.commits(1)
    assert followed.served() == "c1"
    followed.pool.release(one.result())
    await settled()
    assert zero.done()


async def test_nobody_gets_a_buffer_before_a_second_commit_of_another_that_comes_earlier(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "c0 c0 c1", buffers=2)
    followed.holds_parameters(0, 1, 2)
    first = await followed.wants_buffer(0)
    other = await followed.wants_buffer(1)
    assert first.done()
    assert not other.done()
    followed.commits(0)
    assert followed.served() == "c0"
    followed.pool.release(first.result())
    await settled()
    assert not other.done()
    assert (await followed.wants_buffer(0)).done()
    await settled()
    assert other.done()


async def test_buffers_are_not_kept_for_those_who_have_gone(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "c0 c2 c0")
    followed.holds_parameters(0, 1, 2)
    waiting = await followed.wants_buffer(1)
    assert not waiting.done()
    for rank in (0, 2):
        followed.registry.sessions.leave(followed.sessions[rank])
    followed.pool.dispatch()
    await settled()
    assert waiting.done()


async def test_full_room_sends_away_whose_commit_is_the_farthest(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "c3 c2 c1 c3", sessions=4)
    followed.holds_parameters(0, 1, 2, 3)
    holds = [BufferLease(session, Call(), Purpose.COMMIT) for session in followed.sessions]
    assert followed.queue.last(holds) is holds[0]  # it has no turn at all
    assert followed.queue.last(holds[1:]) is holds[1]
    followed.commits(3)
    assert followed.served() == "c3"
    assert followed.queue.last(holds[2:]) is holds[3]


async def test_what_the_budget_has_left_is_kept_for_those_whose_turn_comes_first(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "c0 c1 c2", buffers=3)
    followed.holds_parameters(0, 1, 2)
    followed.unreserved = 2
    first, second, third = [await followed.wants_buffer(rank) for rank in range(3)]
    assert (first.done(), second.done(), third.done()) == (True, True, False)
    second.result().complete = True
    followed.unreserved = 1
    followed.pool.dispatch()
    await settled()
    assert not third.done()
    followed.registry.sessions.leave(followed.sessions[0])
    followed.pool.release(first.result())  # its upload was torn
    await settled()
    assert third.done()


async def test_draining_serves_what_is_complete_without_waiting_for_turns(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "c0 c1 c2 c1")
    followed.holds_parameters(0, 1, 2)
    followed.commits(2, 1)
    assert followed.served() == ""
    followed.queue.close()
    assert followed.served() == "c1 c2"


async def test_resumed_run_goes_on_behind_its_clock(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "p0 p1 c0 c1 p2 c1 c2")
    followed.turns.begin_at(3)
    followed.pulls(0, 1, 2)
    followed.commits(1, 2)
    assert followed.served() == "p2 p1 c1 c2 p0"


async def test_trace_that_begins_later_than_the_run_is_refused(tmp_path: Path) -> None:
    order = read_order(write_order(tmp_path / "the.trace", "p0 c0", clock=51))
    turns = TraceTurns(list, order, "the.trace")
    with pytest.raises(StartupError, match="begins at clock 51, and the run is at clock 1: choose"):
        turns.begin_at(0)
    turns.begin_at(51)
