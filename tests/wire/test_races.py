"""Things that happen at once. Round-robin order fixes which: what is complete waits for the turn of rank 0."""

import asyncio
from collections.abc import Awaitable

import grpc
import numpy as np
import pytest
from gemps.v1 import run_pb2, transfer_pb2

from tests.wire.calls import Stream
from tests.wire.conftest import Serve
from tests.wire.model import FLOAT32, LARGE, Model, Tensor
from tests.wire.oracle import Oracle
from tests.wire.refusals import PATIENCE, Refusal, answered_or_refused, read_refusal, refused
from tests.wire.serving import Serving
from tests.wire.transfer import Commit, Transfer
from tests.wire.worker import CommitStream, RawWorker, all_of, collect

pytestmark = pytest.mark.usefixtures("each_transport")

# Far more than gRPC has under way for a client that does not read ahead, so that an unread reply is really unread.
WIDE = Model((Tensor("weight", (2_000_000,)), Tensor("count", (), "buffer", "int64")))


class Turn:
    """Rank 0's turn, taken by a commit under way: what the others complete stays in the queue until `use`."""

    def __init__(self, worker: RawWorker, stream: CommitStream, commit: Commit) -> None:
        self.worker = worker
        self.stream = stream
        self.commit = commit

    @classmethod
    async def take(cls, worker: RawWorker, seed: int = 100) -> "Turn":
        stream = worker.commit_stream()
        commit = worker.prepare(worker.delta(seed))
        await stream.send_opening(commit)
        return cls(worker, stream, commit)

    async def complete(self) -> None:
        await self.stream.send_rest(self.commit)

    async def use(self) -> None:
        await self.complete()
        await self.stream.outcome()


async def by_turns(serve: Serve, count: int, **settings: object) -> tuple[Serving, list[RawWorker]]:
    serving = await serve(order="round-robin", min_workers=count, staging_buffers=8, **settings)
    return serving, await serving.training(count, LARGE)


async def complete(serving: Serving, worker: RawWorker, commit: Commit, queued: int = 1) -> CommitStream:
    """A stream whose commit is complete and waits in the queue."""
    stream = worker.commit_stream()
    await stream.send_commit(commit)
    await serving.until_queued(queued)
    return stream


async def test_retry_that_arrives_while_the_original_is_queued_is_applied_once(serve: Serve) -> None:
    serving, (first, worker) = await by_turns(serve, 2)
    oracle = Oracle(await serving.values(LARGE))
    oracle.pull(first.name)
    oracle.pull(worker.name)
    turn = await Turn.take(first)
    commit = worker.prepare(worker.delta(1))
    original = await complete(serving, worker, commit)
    retry = worker.commit_stream()
    answer = asyncio.create_task(retry.outcome_of_repeat(commit))
    await original.refused("NEWER_CALL")
    assert (await serving.status()).commits == 0, "a retry must not jump the queue"
    await turn.use()
    outcome = await answer
    assert outcome.verdict.version.clock == 3
    oracle.commit(first.name, first.delta(100).parameters)
    oracle.commit(worker.name, worker.delta(1).parameters)
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, oracle.parameters)
    assert (await serving.status()).commits == 2
    assert (await worker.heartbeat()).last_applied_sequence == 1
    np.testing.assert_array_equal(outcome.reply.values.parameters, serving.snapshot(worker).parameters)


async def test_many_retries_of_a_queued_commit_are_applied_once(serve: Serve) -> None:
    serving, (first, worker) = await by_turns(serve, 2)
    turn = await Turn.take(first)
    commit = worker.prepare(worker.delta(1))
    streams = [await complete(serving, worker, commit)]
    for _ in range(4):
        streams.append(worker.commit_stream())
        await streams[-1].send(commit.repeated().opening())
        await streams[-2].refused("NEWER_CALL")
    last = worker.commit_stream()
    answer = asyncio.create_task(last.outcome_of_repeat(commit))
    await streams[-1].refused("NEWER_CALL")
    await turn.use()
    assert (await answer).verdict.version.clock == 3
    assert (await serving.status()).commits == 2


async def test_other_content_under_a_queued_sequence_is_not_applied(serve: Serve) -> None:
    """Whatever the answer is, and whenever it comes, the sequence stands for the commit that was complete first."""
    serving, (first, worker) = await by_turns(serve, 2)
    oracle = Oracle(await serving.values(LARGE))
    oracle.pull(first.name)
    oracle.pull(worker.name)
    turn = await Turn.take(first)
    await complete(serving, worker, worker.prepare(worker.delta(1)))
    other = worker.prepare(worker.delta(2))
    refusing = asyncio.create_task(refused(worker.commit_stream().outcome_of_repeat(other), "SEQUENCE_REUSED"))
    await turn.use()
    await refusing
    oracle.commit(first.name, first.delta(100).parameters)
    oracle.commit(worker.name, worker.delta(1).parameters)
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, oracle.parameters)


async def test_commit_whose_stream_is_cancelled_before_the_verdict_is_applied_once(serve: Serve) -> None:
    """A complete commit is always applied; the repeat is a duplicate."""
    serving, (first, worker) = await by_turns(serve, 2)
    turn = await Turn.take(first)
    commit = worker.prepare(worker.delta(1))
    stream = await complete(serving, worker, commit)
    stream.cancel()
    await turn.use()
    await serving.until(lambda status: status.commits == 2)
    assert (await worker.heartbeat()).last_applied_sequence == 1
    repeat = await worker.commit_stream().outcome_of_repeat(commit)
    assert repeat.verdict.duplicate
    assert repeat.verdict.version.clock == 3
    assert (await serving.status()).commits == 2
    await serving.until_idle()


async def test_delta_that_is_dropped_while_its_commit_waits_for_its_turn_has_used_up_its_sequence(serve: Serve) -> None:
    """Why docs/protocol.md has a worker that does not know the outcome send it again, and not drop it."""
    serving, (first, worker) = await by_turns(serve, 2)
    turn = await Turn.take(first)
    (await complete(serving, worker, worker.prepare(worker.delta(1)))).cancel()
    assert (await worker.heartbeat()).last_applied_sequence == 0
    pulling = asyncio.create_task(worker.pull())
    await turn.use()
    next_turn = await Turn.take(first, seed=101)
    await serving.until_queued(1)
    await next_turn.use()
    await pulling
    another = worker.prepare(worker.delta(2), sequence=1).repeated()
    await refused(worker.commit_stream().outcome_of_repeat(another), "SEQUENCE_REUSED")
    assert (await worker.heartbeat()).last_applied_sequence == 1


async def test_complete_commit_of_a_session_that_leaves_is_applied(serve: Serve) -> None:
    serving, (first, worker) = await by_turns(serve, 2)
    turn = await Turn.take(first)
    await complete(serving, worker, worker.prepare(worker.delta(1)))
    await worker.leave()
    await turn.use()
    await serving.until(lambda status: status.commits == 2)
    await serving.until_idle()


async def test_complete_commit_of_a_superseded_session_is_applied(serve: Serve) -> None:
    """Two sessions of one name: the older one ends, what it completed counts, the newer one starts from its pull."""
    serving, (first, older) = await by_turns(serve, 2)
    turn = await Turn.take(first)
    stream = await complete(serving, older, older.prepare(older.delta(1)))
    newer = serving.adopt(older.twin())
    assert (await newer.join()).last_applied_sequence == 0
    await stream.refused("NEWER_SESSION")
    await turn.use()
    await serving.until(lambda status: status.commits == 2)
    pulling = asyncio.create_task(newer.pull())
    await first.leave()
    assert (await pulling).clock == 3
    await serving.next_commit_works(newer)


async def test_budget_is_spent_exactly_when_more_commits_than_it_has_become_complete(serve: Serve) -> None:
    """Three commits in the budget, five workers with a buffer: the first three that are complete are applied."""
    serving, workers = await by_turns(serve, 5, commits=3)
    turns = [await Turn.take(worker) for worker in workers]
    for number in (2, 4):
        await turns[number].complete()
    await serving.until_queued(2)
    # With the third the budget is spent: the ranks without a complete commit have no turn to wait for any more.
    await turns[1].complete()
    outcomes = await all_of(*(turns[number].stream.outcome() for number in (1, 2, 4)))
    assert [outcome.verdict.version.clock for outcome in outcomes] == [2, 3, 4]
    assert outcomes[-1].verdict.run_state == run_pb2.RUN_STATE_FINISHED
    for number in (0, 3):
        await turns[number].complete()
        await turns[number].stream.refused("RUN_FINISHED")
    status = await serving.status()
    assert (status.commits, status.version.clock) == (3, 4)
    await serving.until_idle()


async def test_worker_that_stays_when_the_budget_is_spent_keeps_nobody_waiting(serve: Serve) -> None:
    """Rank 0 has a turn that it cannot use any more, and does not leave."""
    serving, (first, second) = await by_turns(serve, 2, commits=1)
    turn = await Turn.take(first)
    outcome = await second.commit(second.delta(1))
    assert outcome.verdict.version.clock == 2
    assert outcome.verdict.run_state == run_pb2.RUN_STATE_FINISHED
    await turn.complete()
    await turn.stream.refused("RUN_FINISHED")
    assert (await second.pull()).clock == 2
    assert (await first.pull()).clock == 2
    await serving.until_idle()


async def test_budget_is_spent_exactly_in_fifo_order_too(serve: Serve) -> None:
    serving = await serve(commits=10, staging_buffers=8)
    workers = await serving.training(8)

    async def work(worker: RawWorker) -> int:
        for applied in range(10):
            if isinstance(await answered_or_refused(worker.commit(worker.delta(applied)), "RUN_FINISHED"), Refusal):
                return applied
        return 10

    assert sum(await all_of(*(work(worker) for worker in workers))) == 10
    assert (await serving.status()).version.clock == 11


@pytest.mark.parametrize("cancelled", [False, True])
async def test_last_commit_of_a_budget_is_retried_while_it_is_queued(serve: Serve, cancelled: bool) -> None:
    """Its place in the budget is its own: the retry must not be told that the run is finished."""
    serving, (first, worker) = await by_turns(serve, 2, commits=2)
    turn = await Turn.take(first)
    commit = worker.prepare(worker.delta(1))
    original = await complete(serving, worker, commit)
    if cancelled:
        original.cancel()
    answer = asyncio.create_task(worker.commit_stream().outcome_of_repeat(commit))
    if not cancelled:
        await original.refused("NEWER_CALL")
    await turn.use()
    outcome = await answer
    assert outcome.verdict.version.clock == 3
    # And once more, now that the run is FINISHED.
    again = await worker.commit_stream().outcome_of_repeat(commit)
    assert again.verdict.duplicate
    assert again.verdict.version.clock == 3
    assert (await serving.status()).commits == 2


async def test_join_with_a_live_session_changes_neither_moment_nor_snapshot(serving: Serving) -> None:
    worker, other = await serving.training(2, LARGE)
    oracle = Oracle(await serving.values(LARGE))
    oracle.pull(worker.name)
    oracle.pull(other.name)
    for seed in range(6):
        for each in (worker, other):
            await worker.join()
            delta = each.delta(seed)
            outcome = await each.commit(delta)
            assert outcome.verdict.staleness == oracle.commit(each.name, delta.parameters)[0]
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, oracle.parameters)


async def test_two_sessions_of_one_name_that_join_at_once_leave_one(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    twins = [serving.adopt(worker.twin()) for _ in range(6)]
    await all_of(*(twin.join() for twin in twins))
    answers = {twin: await answered_or_refused(twin.heartbeat(), "NEWER_SESSION") for twin in [worker, *twins]}
    alive = [twin for twin, answer in answers.items() if not isinstance(answer, Refusal)]
    assert len(alive) == 1
    assert [w.sessions for w in (await serving.status()).workers] == [7]
    await alive[0].pull()
    await serving.next_commit_works(alive[0])


async def read_rest(stream: Stream, header_field: str, transfer: Transfer) -> None:
    while not transfer.complete:
        collect(await stream.receive(), header_field, transfer, None)


async def answered_or_ended(call: Awaitable[None], reason: str = "NEWER_CALL") -> None:
    """Await an answer or a refusal for this reason. On the lane, a torn message may end the connection instead."""
    [answer] = await asyncio.wait_for(asyncio.gather(call, return_exceptions=True), PATIENCE)
    if answer is None:
        return
    assert isinstance(answer, grpc.aio.AioRpcError)
    is_torn = RawWorker.uses_lane and answer.code() == grpc.StatusCode.UNAVAILABLE
    assert is_torn or read_refusal(answer).reason == reason


async def read_to_the_end(stream: CommitStream, expected: bytes, clock: int, reason: str = "NEWER_CALL") -> None:
    """Read the rest of an older reply, all of which must be of its own version, until the stream ends."""
    reply = Transfer(WIDE, FLOAT32)
    await answered_or_ended(read_rest(stream, "parameters", reply), reason)
    # On the lane also a message may have come in part, and is not shown then.
    assert reply.header is not None or RawWorker.uses_lane
    assert reply.header is None or reply.clock == clock
    assert bytes(reply.payload) == expected[: len(reply.payload)]


async def unread_reply(serving: Serving) -> tuple[RawWorker, RawWorker, CommitStream, bytes]:
    """A worker whose commit was applied and whose reply waits to be read, another worker, and what the reply holds."""
    worker, other = await serving.training(2, WIDE, reads_ahead=False)
    stream = worker.commit_stream()
    await stream.send_commit(worker.prepare(worker.delta(1)))
    await serving.until(lambda status: status.commits == 1)
    return worker, other, stream, bytes((await serving.read(WIDE)).payload)


async def test_pull_while_a_reply_is_not_read_is_served_and_tears_nothing(serving: Serving) -> None:
    """Nothing writes s_w while a reply still reads it: the pull takes the reading over, and the older reply ends."""
    worker, other, stream, expected = await unread_reply(serving)
    await other.commit(other.delta(2))
    pulled = await worker.pull()
    assert pulled.clock == 3
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, pulled.values.parameters)
    await read_to_the_end(stream, expected, clock=2)
    worker.version, worker.sequence = pulled.version, 1
    await serving.next_commit_works(worker)
    await serving.next_commit_works(other)


async def test_next_stream_while_a_reply_is_not_read_is_served_and_tears_nothing(serving: Serving) -> None:
    """The worker has given up the old stream, and commits with the base of its verdict."""
    worker, other, stream, expected = await unread_reply(serving)
    await other.commit(other.delta(2))
    base = transfer_pb2.Version(incarnation=worker.version.incarnation, clock=2)
    outcome = await worker.commit_on_new_stream(worker.prepare(worker.delta(3), sequence=2, base_version=base))
    assert outcome.verdict.staleness == 1
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, outcome.reply.values.parameters)
    await read_to_the_end(stream, expected, clock=2)


async def test_resume_while_the_reply_is_not_read_is_served_and_tears_nothing(serving: Serving) -> None:
    """A worker that gave a reply up after its first chunk asks for the rest while the server still tries to send."""
    worker, other, stream, expected = await unread_reply(serving)
    torn = Transfer(WIDE, FLOAT32)
    collect(await stream.receive(), "parameters", torn, None)
    await other.commit(other.delta(2))
    assert bytes((await worker.resume(torn)).payload) == expected
    await answered_or_ended(read_rest(stream, "parameters", torn))
    assert not torn.complete


async def test_newer_pull_ends_an_older_one_that_is_not_read(serving: Serving) -> None:
    """Already its first message waits for the reader: the status must get through all the same."""
    (worker,) = await serving.training(1, WIDE, reads_ahead=False)
    expected = bytes(worker.held.payload)
    older = Stream(worker.stub.Pull(worker.pull_request()))
    await serving.until(lambda status: status.workers[0].seconds_since_last_call == 0)
    assert bytes((await worker.pull()).payload) == expected
    reply = Transfer(WIDE, FLOAT32)
    await refused(read_rest(older, "header", reply), "NEWER_CALL")
    assert bytes(reply.payload) == expected[: len(reply.payload)]


async def test_newer_session_ends_a_reply_that_is_not_read(serving: Serving) -> None:
    worker, _, stream, expected = await unread_reply(serving)
    newer = serving.adopt(worker.twin())
    await newer.join()
    await newer.pull()
    await read_to_the_end(stream, expected, clock=2, reason="NEWER_SESSION")
    await serving.next_commit_works(newer)


async def test_unread_reply_stops_nobody_else(serving: Serving) -> None:
    worker, other = await serving.training(2, WIDE, reads_ahead=False)
    unread = worker.commit_stream()
    await unread.send_commit(worker.prepare(worker.delta(1)))
    for seed in range(3):
        await other.commit(other.delta(seed))
    assert (await unread.outcome()).verdict.version.clock == 2


async def test_pull_does_not_overtake_the_sessions_own_complete_commit(serve: Serve) -> None:
    """A complete commit is applied against the base it named, whatever the session asks for in the meantime."""
    serving, (first, second, third) = await by_turns(serve, 3)
    oracle = Oracle(await serving.values(LARGE))
    for worker in (first, second, third):
        oracle.pull(worker.name)
    turn = await Turn.take(first)
    next_turn = await Turn.take(second)
    await complete(serving, third, third.prepare(third.delta(3)))
    await turn.use()
    pulling = asyncio.create_task(answered_or_refused(third.pull(), "NEWER_CALL"))
    await serving.until(lambda status: status.queue.length == 2 or pulling.done())
    await next_turn.use()
    await serving.until(lambda status: status.commits == 3)
    oracle.commit(first.name, first.delta(100).parameters)
    oracle.commit(second.name, second.delta(100).parameters)
    staleness, _ = oracle.commit(third.name, third.delta(3).parameters)
    status = await serving.status()
    assert status.workers[2].staleness_last == staleness == 2
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, oracle.parameters)
    pulling.cancel()


async def test_commit_and_pull_of_one_session_at_once_leave_one_truth(serving: Serving) -> None:
    """In whatever order they are served, what the worker holds in the end is what the server believes it holds."""
    (worker,) = await serving.training(1, LARGE)
    for seed in range(10):
        commit = worker.prepare(worker.delta(seed))
        stream = worker.commit_stream()
        await stream.send_opening(commit)
        pulling = asyncio.create_task(answered_or_refused(worker.pull(), "NEWER_CALL"))
        await stream.send_rest(commit)
        await pulling
        await answered_or_refused(stream.outcome(), "STALE_BASE", "NEWER_CALL")
        worker.sequence = (await worker.heartbeat()).last_applied_sequence
        await worker.pull()
        np.testing.assert_array_equal(serving.snapshot(worker).parameters, worker.held.values.parameters)
    await serving.next_commit_works(worker)
