"""Pull: versions, what is sent, what is remembered, and how a torn transfer goes on."""

import asyncio
import os
from dataclasses import replace

import numpy as np
import pytest
from gem_worker import Observer
from gemps.v1 import parameters_pb2, run_pb2, transfer_pb2

from gem_core.wire_types import BLOCKS
from tests.wire.conftest import Serve
from tests.wire.model import (
    BFLOAT16,
    FLOAT32,
    LARGE,
    PARAMETER_WIRE_TYPES,
    SHARED_MEMORY,
    SMALL,
    Model,
    Tensor,
    Values,
)
from tests.wire.refusals import PATIENCE, Refusal, answered_or_refused, refused
from tests.wire.serving import Serving
from tests.wire.transfer import crc32c
from tests.wire.worker import RawWorker

# Far more than gRPC has under way for a client that does not read ahead.
WIDE = Model((Tensor("weight", (500_000,)),))


async def test_pull_before_initialize_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    await refused(worker.pull(), "NOT_INITIALIZED")
    await refused(serving.read(SMALL), "NOT_INITIALIZED")


async def test_pull_of_an_unknown_session_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(worker.pull(session_id=os.urandom(16)), "UNKNOWN_SESSION")


@pytest.mark.parametrize("session_id", [b"\x01" * 15, b"\x01" * 17])
async def test_pull_with_a_session_id_of_another_length_is_refused(serving: Serving, session_id: bytes) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(worker.pull(session_id=session_id), "MALFORMED")


async def test_pull_of_bytes_that_are_no_protobuf_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    call = worker.stub.Pull(b"\xff\xff\xff")
    await refused(call.read(), "MALFORMED")


async def test_current_version_is_not_sent_again(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    version = (await worker.commit(worker.delta(1))).reply.version
    answer = await worker.pull(known_version=version)
    assert answer.header is None
    assert answer.not_modified.version == version
    assert answer.not_modified.run_state == run_pb2.RUN_STATE_TRAINING
    await serving.next_commit_works(worker)
    assert (await serving.read(SMALL, known_version=worker.version)).not_modified.version == worker.version


@pytest.mark.parametrize("session", [True, False])
async def test_older_or_foreign_version_gets_the_parameters(serving: Serving, session: bool) -> None:
    (worker,) = await serving.training(1)
    older = worker.version
    current = (await worker.commit(worker.delta(1))).reply.version
    foreign = transfer_pb2.Version(incarnation=current.incarnation ^ 1, clock=current.clock)
    for known in (older, foreign, transfer_pb2.Version()):
        pulled = await (worker.pull if session else lambda **f: serving.read(SMALL, **f))(known_version=known)
        assert pulled.complete
        assert pulled.version == current


async def test_known_version_that_the_session_does_not_hold_still_gets_a_base(serving: Serving) -> None:
    """A worker that knows the current version from elsewhere holds nothing by the server's count.

    Whatever the server answers, the next commit must be possible as the answer says: after NOT_MODIFIED with the
    version it named, after parameters with theirs.
    """
    (first,) = await serving.training(1)
    fresh = await serving.joined()
    answer = await fresh.pull(known_version=first.version)
    if answer.not_modified is not None:
        fresh.version = answer.not_modified.version
    await serving.next_commit_works(fresh)


async def test_header_tells_the_totals(serving: Serving) -> None:
    """`Transfer` compares byte_count, digest, offset and type with this folder's own arithmetic."""
    (worker,) = await serving.training(1, LARGE)
    assert (await worker.pull()).header.byte_count == LARGE.byte_count()
    pulled = await worker.pull()
    assert not pulled.header.HasField("layout")
    assert (await worker.pull(with_layout=True)).header.layout == LARGE.to_proto()


async def test_a_long_layout_leaves_room_for_a_chunk_of_any_size(serve: Serve) -> None:
    serving = await serve(chunk_bytes=2 * 1024 * 1024)
    frozen = (Tensor(f"frozen.{index}", (4,), "frozen", sha256=bytes(32)) for index in range(2_000))
    model = Model([Tensor("weight", (1024, 600)), *frozen])
    await serving.training(1, model)

    def pull() -> int:
        with Observer(serving.address) as observer:
            pulled = observer.pull()
        assert pulled is not None
        return len(pulled.layout.tensors)

    assert await asyncio.to_thread(pull) == 2_001


@pytest.mark.parametrize("chunk_bytes", [4096, 50_001, 2 * 1024 * 1024])
async def test_chunks_have_the_size_that_the_server_was_told(serve: Serve, chunk_bytes: int) -> None:
    """`Transfer` asserts the limit and the borders."""
    serving = await serve(chunk_bytes=chunk_bytes)
    (worker,) = await serving.training(1, LARGE)
    assert worker.membership.chunk_bytes == chunk_bytes
    pulled = await worker.pull()
    assert pulled.chunk_count >= -(-LARGE.byte_count() // chunk_bytes)


@pytest.mark.parametrize("wire_type", PARAMETER_WIRE_TYPES)
async def test_reader_without_session_chooses_the_wire_type(serving: Serving, wire_type: int) -> None:
    worker = await serving.joined()
    values = SMALL.random_values(2)
    await worker.initialize(values)
    transfer = await serving.read(SMALL, wire_type=wire_type)
    expected = SMALL.encode(values, wire_type)
    assert bytes(transfer.payload) == expected[: len(transfer.payload)]


@pytest.mark.parametrize("wire_type", [2, 4, SHARED_MEMORY, *BLOCKS, 77])
async def test_reader_that_asks_for_a_wire_type_that_is_not_offered_is_refused(
    serving: Serving, wire_type: int
) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(serving.read(SMALL, wire_type=wire_type), "NOT_OFFERED", "WIRE_TYPE")


async def test_pull_of_a_session_sets_what_it_holds(serving: Serving) -> None:
    worker, other = await serving.training(2)
    await other.commit(other.delta(1))
    pulled = await worker.pull()
    assert pulled.clock == 2
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, pulled.values.parameters)
    outcome = await worker.commit(worker.delta(2))
    assert outcome.verdict.staleness == 0


async def test_pull_without_a_session_changes_nobodys_snapshot(serving: Serving) -> None:
    worker, other = await serving.training(2)
    await other.commit(other.delta(1))
    before = serving.snapshot(worker).parameters
    assert (await serving.read(SMALL)).clock == 2
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, before)
    assert (await worker.commit(worker.delta(2))).verdict.staleness == 1


async def test_pull_works_when_the_run_is_finished(serve: Serve) -> None:
    serving = await serve(commits=1)
    worker, other = await serving.training(2)
    last = await worker.commit(worker.delta(1))
    assert bytes((await other.pull()).payload) == bytes(last.reply.payload)
    assert (await other.pull(known_version=other.version)).not_modified.run_state == run_pb2.RUN_STATE_FINISHED
    assert (await serving.read(SMALL)).version == last.reply.version


# -- torn pulls --------------------------------------------------------------------------------------------------------


async def chunky(serve: Serve, **join_fields: object) -> tuple[Serving, RawWorker, RawWorker]:
    serving = await serve(chunk_bytes=40_000)
    worker, other = await serving.training(2, LARGE, **join_fields)
    return serving, worker, other


@pytest.mark.parametrize("chunks", range(6))
async def test_pull_torn_at_any_chunk_goes_on_where_it_stopped(serve: Serve, chunks: int) -> None:
    """This also holds when the central variable has changed, because a resumed pull reads the session's snapshot."""
    serving, worker, other = await chunky(serve)
    await other.commit(other.delta(1))
    expected = bytes((await serving.read(LARGE)).payload)
    torn = await worker.pull(stop_after=chunks)
    assert not torn.complete
    await other.commit(other.delta(2))
    whole = await worker.resume(torn)
    assert whole.clock == 2
    assert bytes(whole.payload) == expected
    np.testing.assert_array_equal(serving.snapshot(worker).parameters, whole.values.parameters)
    outcome = await worker.commit(worker.delta(3))
    assert outcome.verdict.staleness == 1


@pytest.mark.parametrize("wire_type", PARAMETER_WIRE_TYPES)
async def test_torn_pull_goes_on_in_every_wire_type(serve: Serve, wire_type: int) -> None:
    serving, worker, other = await chunky(serve, parameter_wire_types=[wire_type])
    complete = await worker.pull()
    torn = await worker.pull(stop_after=1)
    await other.commit(other.delta(2))
    assert bytes((await worker.resume(torn)).payload) == bytes(complete.payload)
    await serving.until_idle()


async def test_transfer_may_be_resumed_at_its_end(serve: Serve) -> None:
    """When only the footer was lost, the rest has no chunk."""
    _, worker, _ = await chunky(serve)
    pulled = await worker.pull()
    torn = replace(pulled, footer=None)
    assert torn.received == LARGE.byte_count()
    assert bytes((await worker.resume(torn)).payload) == bytes(pulled.payload)


@pytest.mark.parametrize("offset", [1, 40_001, LARGE.byte_count() - 3])
async def test_transfer_may_be_resumed_within_an_element(serve: Serve, offset: int) -> None:
    _, worker, _ = await chunky(serve)
    pulled = await worker.pull()
    payload = pulled.payload[:offset]
    torn = replace(pulled, footer=None, payload=payload, crc32c=crc32c(bytes(payload)))
    assert bytes((await worker.resume(torn)).payload) == bytes(pulled.payload)


@pytest.mark.parametrize("offset", [LARGE.byte_count() + 1, 2**63])
async def test_resume_offset_beyond_the_end_is_refused(serve: Serve, offset: int) -> None:
    serving, worker, _ = await chunky(serve)
    async with serving.unchanged(worker):
        await refused(worker.pull(resume_version=worker.version, resume_offset=offset), "BAD_CHUNK")


async def test_resume_of_a_version_that_the_session_no_longer_holds_is_refused(serve: Serve) -> None:
    serving, worker, _ = await chunky(serve)
    older = worker.version
    await worker.commit(worker.delta(1))
    async with serving.unchanged(worker):
        await refused(worker.pull(resume_version=older), "STALE_BASE")


async def test_resume_of_another_incarnation_is_refused(serve: Serve) -> None:
    serving, worker, _ = await chunky(serve)
    other = transfer_pb2.Version(incarnation=worker.version.incarnation ^ 1, clock=worker.version.clock)
    async with serving.unchanged(worker):
        await refused(worker.pull(resume_version=other), "STALE_BASE", "UNKNOWN_INCARNATION")


async def test_resume_before_the_first_pull_is_refused(serving: Serving) -> None:
    (first,) = await serving.training(1)
    fresh = await serving.joined()
    await refused(fresh.pull(resume_version=first.version), "STALE_BASE")


async def test_resume_without_a_session_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(serving.read(SMALL, resume_version=worker.version), "MALFORMED", "UNKNOWN_SESSION")


async def test_resume_offset_without_a_version_is_refused_or_starts_anew(serving: Serving) -> None:
    """It does not say in which version to continue, and an answer from another version's middle would mix the two."""
    (worker,) = await serving.training(1)
    answer = await answered_or_refused(worker.pull(resume_offset=4), "MALFORMED")
    assert isinstance(answer, Refusal) or answer.complete


# -- readers without a session -----------------------------------------------------------------------------------------


async def test_reader_sees_one_version_while_workers_commit(serve: Serve) -> None:
    """The parameters never mix versions: a payload is exactly of the version in its header."""
    serving, worker, _ = await chunky(serve)
    seen: dict[int, bytes] = {1: bytes(worker.held.payload)}
    for seed in range(5):
        call = serving.stub.Pull(parameters_pb2.PullRequest())
        first = await call.read()
        outcome = await worker.commit(worker.delta(seed))
        seen[outcome.reply.clock] = bytes(outcome.reply.payload)
        payload = bytearray(first.chunk)
        while (message := await call.read()) and not message.HasField("footer"):
            payload += message.chunk
        payload += message.chunk
        assert bytes(payload) == seen[first.header.version.clock]


async def test_readers_of_one_version_share_a_snapshot_and_a_third_version_has_to_wait(serving: Serving) -> None:
    """Pulls without a session share one counted snapshot, two at most: readers that do not read cost no more."""
    worker, reader = await serving.training(2, WIDE, reads_ahead=False)
    held = []
    for seed in range(2):
        for _ in range(3):
            held.append(reader.stub.Pull(parameters_pb2.PullRequest()))
            assert (await held[-1].read()).header.version.clock == 1 + seed
        await worker.commit(worker.delta(seed))
    refusal = await refused(serving.read(WIDE), "TOO_MANY")
    assert refusal.retry_after is not None
    # Two of the three readers of the first version do not set its snapshot free.
    for call in held[:2]:
        call.cancel()
    await refused(serving.read(WIDE), "TOO_MANY")
    held[2].cancel()
    async with asyncio.timeout(PATIENCE):
        while isinstance(answer := await answered_or_refused(serving.read(WIDE), "TOO_MANY"), Refusal):
            pass
    assert answer.clock == 3
    for call in held:
        call.cancel()


async def test_delta_and_parameters_may_travel_in_different_types(serving: Serving) -> None:
    (worker,) = await serving.training(1, delta_wire_types=[BFLOAT16], parameter_wire_types=[FLOAT32])
    outcome = await worker.commit(Values(worker.delta(1).parameters, worker.delta(1).rest))
    assert outcome.reply.header.wire_type == FLOAT32
