"""Commits through shared memory: the same verdicts and parameters as on the stream, and the same refusals."""

import asyncio
import errno
import fcntl
import mmap
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from gem_server.errors import StartupError
from gemps.v1 import errors_pb2, shared_memory_pb2

from tests.core.slow import word_sum
from tests.waiting import eventually_async
from tests.wire.conftest import Serve
from tests.wire.model import BFLOAT16, FLOAT32, LARGE, SHARED_MEMORY, SMALL, Values
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.sharing import Sharing, answer_to, connect, needs_shared_memory
from tests.wire.worker import RawWorker

pytestmark = needs_shared_memory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory"


async def sharing(serve: Serve, path: Path, **fields: object) -> tuple[Serving, RawWorker, Sharing]:
    """A server, a worker that has joined and pulled, and its regions."""
    serving = await serve(shared_memory_socket=path)
    worker = await serving.joined(LARGE, **fields)
    await worker.initialize()
    shared = await Sharing.of(worker)
    await worker.pull()
    return serving, worker, shared


def flat(values: Values) -> bytes:
    return values.parameters.tobytes() + values.rest


# -- what it is for ----------------------------------------------------------------------------------------------------


async def test_commits_give_the_parameters_that_they_give_on_the_stream(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    other = await serve()
    (streaming,) = await other.training(1, LARGE)
    for seed in range(1, 6):
        verdict, payload = await shared.commit(worker.delta(seed), loss=0.5, samples=3)
        outcome = await streaming.commit(streaming.delta(seed), loss=0.5, samples=3)
        assert payload == bytes(outcome.reply.payload)
        assert flat(serving.snapshot(worker)) == payload
        assert (verdict.sequence, verdict.staleness) == (outcome.verdict.sequence, outcome.verdict.staleness)
        assert verdict.statistics == outcome.verdict.statistics
    seen = (await serving.status()).workers[0]
    assert (seen.commits, seen.samples) == (5, 15)
    assert await serving.central(LARGE) != await other.central(LARGE)  # another incarnation
    assert (await serving.central(LARGE))[1:] == (await other.central(LARGE))[1:]


async def test_workers_may_share_memory_or_use_the_stream_in_one_run(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    (streaming,) = await serving.training(1, LARGE)
    await shared.commit(worker.delta(1))
    await streaming.commit(streaming.delta(2))
    verdict, payload = await shared.commit(worker.delta(3))
    assert (verdict.version.clock, verdict.staleness) == (4, 1)
    assert payload[: 4 * LARGE.parameter_count] == (await serving.values(LARGE)).parameters.tobytes()


async def test_a_commit_may_go_as_chunks_at_any_time(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    await shared.commit(worker.delta(1))
    outcome = await worker.commit(worker.delta(2))
    assert outcome.reply.complete
    verdict, payload = await shared.commit(worker.delta(3))
    assert verdict.version.clock == 4
    assert payload == flat(serving.snapshot(worker))


async def test_parameters_come_as_chunks_until_the_snapshot_lies_in_shared_memory(serve: Serve, path: Path) -> None:
    serving = await serve(shared_memory_socket=path)
    (worker,) = await serving.training(1, LARGE)
    shared = await Sharing.of(worker)  # after its pull
    commit = shared.prepare(worker.delta(1))
    stream = worker.commit_stream()
    await stream.send(commit.opening())
    outcome = await stream.outcome()
    assert bytes(outcome.reply.payload) == flat(serving.snapshot(worker))
    await worker.pull()
    verdict, payload = await shared.commit(worker.delta(2))
    assert verdict.sequence == 2
    assert payload == flat(serving.snapshot(worker))


async def test_the_server_multiplies_where_the_header_says_so(serve: Serve, path: Path) -> None:
    _, worker, shared = await sharing(serve, path)
    other = await serve()
    (streaming,) = await other.training(1, LARGE)
    scale = np.float32(-0.05)
    for seed in range(1, 4):
        gradient = worker.delta(seed)
        _, payload = await shared.commit(gradient, scale=scale)
        delta = Values(gradient.parameters * scale, gradient.rest)
        outcome = await streaming.commit(delta)
        assert payload == bytes(outcome.reply.payload)


async def test_a_repeat_of_a_scaled_delta_is_known_by_what_was_applied(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    commit = shared.prepare(worker.delta(1), scale=0.5)
    await shared.exchange(commit)
    delta = worker.delta(1)
    applied = LARGE.encode(Values(delta.parameters * np.float32(0.5), delta.rest))
    repeated, _ = await shared.exchange(commit.with_header(payload_crc32c=word_sum(applied)))
    assert repeated.duplicate
    async with serving.unchanged(worker):
        await refused(shared.exchange(commit.with_header(payload_crc32c=word_sum(commit.payload))), "SEQUENCE_REUSED")


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
async def test_a_scale_that_is_not_finite_is_refused(serve: Serve, path: Path, scale: float) -> None:
    serving, worker, shared = await sharing(serve, path)
    async with serving.unchanged(worker):
        await refused(shared.exchange(shared.prepare(worker.delta(1), scale=scale)), "MALFORMED")


async def test_a_product_that_is_too_large_is_refused(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    delta = worker.delta(1)
    delta.parameters[3] = 1e20
    async with serving.unchanged(worker):
        refusal = await refused(shared.exchange(shared.prepare(delta, scale=1e11)), "BAD_VALUE")
        assert "'weight', element 3" in refusal.message


# -- exactly once ------------------------------------------------------------------------------------------------------


async def test_a_repeat_gets_the_stored_verdict_and_is_not_applied(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    commit = shared.prepare(worker.delta(1))
    verdict, payload = await shared.exchange(commit)
    before = await serving.central(LARGE)
    again = commit.with_header(payload_crc32c=word_sum(commit.payload))
    repeated, same = await shared.exchange(again)
    assert repeated.duplicate
    assert same == payload
    repeated.duplicate = False
    assert repeated == verdict
    assert await serving.central(LARGE) == before


async def test_a_repeat_without_a_handle_brings_the_parameters_as_chunks(serve: Serve, path: Path) -> None:
    _, worker, shared = await sharing(serve, path)
    commit = shared.prepare(worker.delta(1))
    _, payload = await shared.exchange(commit)
    shared.close()
    commit.header.ClearField("shared_memory")
    commit.header.payload_crc32c = word_sum(commit.payload)
    stream = worker.commit_stream()
    await stream.send(commit.opening())
    outcome = await stream.outcome()
    assert outcome.verdict.duplicate
    assert bytes(outcome.reply.payload) == payload


async def test_other_content_under_an_applied_sequence_is_refused(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    commit = shared.prepare(worker.delta(1))
    await shared.exchange(commit)
    other = commit.with_header(payload_crc32c=word_sum(commit.payload) ^ 1)
    async with serving.unchanged(worker):
        await refused(shared.exchange(other), "SEQUENCE_REUSED")
    commit = shared.prepare(worker.delta(2))
    await shared.exchange(commit)
    async with serving.unchanged(worker):
        await refused(shared.exchange(commit), "SEQUENCE_GAP")  # a repeat says what it repeats


async def test_a_word_sum_that_does_not_fit_is_refused(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    commit = shared.prepare(worker.delta(1))
    async with serving.unchanged(worker):
        wrong = commit.with_header(payload_crc32c=word_sum(commit.payload) ^ 1)
        await refused(shared.exchange(wrong), "CHECKSUM")
    right = shared.prepare(worker.delta(1))
    verdict, _ = await shared.exchange(right.with_header(payload_crc32c=word_sum(right.payload)))
    assert verdict.sequence == 2


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"region": 77}, "NO_SHARED_MEMORY"),
        ({"offset": 0}, "NO_SHARED_MEMORY"),
        ({"offset": 1 << 40}, "NO_SHARED_MEMORY"),
        ({"byte_count": 4}, "NO_SHARED_MEMORY"),
        ({"byte_count": 1 << 60}, "NO_SHARED_MEMORY"),
    ],
)
async def test_a_handle_of_another_place_is_refused(
    serve: Serve, path: Path, changes: dict[str, int], reason: str
) -> None:
    serving, worker, shared = await sharing(serve, path)
    commit = shared.prepare(worker.delta(1), shared_memory=shared.handle(**changes))
    async with serving.unchanged(worker):
        await refused(shared.exchange(commit), reason)


async def test_what_does_not_belong_together_is_refused(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    async with serving.unchanged(worker):
        commit = shared.prepare(worker.delta(1), byte_count=4)
        await refused(shared.exchange(commit), "SIZE_MISMATCH")
    async with serving.unchanged(worker):
        commit = shared.prepare(worker.delta(1))
        commit.header.ClearField("shared_memory")
        await refused(shared.exchange(commit), "NO_SHARED_MEMORY")
    async with serving.unchanged(worker):
        commit = shared.prepare(worker.delta(1), wire_type=FLOAT32)  # with a handle
        await refused(shared.exchange(commit), "WIRE_TYPE")
    async with serving.unchanged(worker):
        commit = shared.prepare(worker.delta(1))
        stream = worker.commit_stream()
        opening = commit.opening()
        opening.footer.CopyFrom(commit.footer)
        await stream.send(opening)
        await stream.refused("OUT_OF_ORDER")
    async with serving.unchanged(worker):
        commit = shared.prepare(worker.delta(1))
        commit.header.base_version.clock += 1
        await refused(shared.exchange(commit), "STALE_BASE")
    async with serving.unchanged(worker):
        commit = shared.prepare(worker.delta(1), sequence=worker.sequence + 2)
        await refused(shared.exchange(commit), "SEQUENCE_GAP")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e31, -1e31])
@pytest.mark.parametrize("index", [0, 51_276])
async def test_an_illegal_value_is_refused(serve: Serve, path: Path, value: float, index: int) -> None:
    serving, worker, shared = await sharing(serve, path)
    delta = worker.delta(1)
    delta.parameters[index] = value
    async with serving.unchanged(worker):
        refusal = await refused(shared.exchange(shared.prepare(delta)), "BAD_VALUE")
    assert f"'{'weight' if index == 0 else 'bias'}', element {0 if index == 0 else 76}" in refusal.message


async def test_an_illegal_value_in_a_buffer_is_refused(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    delta = worker.delta(1)
    rest = np.float32(np.nan).tobytes() + delta.rest[4:]
    async with serving.unchanged(worker):
        refusal = await refused(shared.exchange(shared.prepare(Values(delta.parameters, rest))), "BAD_VALUE")
    assert "running_var" in refusal.message


async def test_a_session_that_settled_on_other_types_is_refused(serve: Serve, path: Path) -> None:
    serving = await serve(shared_memory_socket=path)
    for field in ("delta_wire_types", "parameter_wire_types"):
        worker = await serving.joined(LARGE, **{field: [BFLOAT16]})
        assert await _refusal(path, worker.session_id) == "WIRE_TYPE"


async def _refusal(path: Path, session_id: bytes) -> str:
    request = shared_memory_pb2.SharedMemoryRequest(session_id=session_id).SerializeToString()
    return await _refusal_of(path, request)


async def _refusal_of(path: Path, request: bytes) -> str:
    loop = asyncio.get_running_loop()
    answer, descriptors, connection = await loop.run_in_executor(None, answer_to, path, request)
    assert descriptors == []
    assert answer.message
    assert await loop.run_in_executor(None, connection.recv, 1) == b""
    connection.close()
    return errors_pb2.ErrorReason.Name(answer.refused).removeprefix("ERROR_REASON_")


async def test_an_unknown_session_and_garbage_are_refused(serve: Serve, path: Path) -> None:
    await serve(shared_memory_socket=path)
    assert await _refusal(path, os.urandom(16)) == "UNKNOWN_SESSION"
    assert await _refusal(path, b"short") == "UNKNOWN_SESSION"
    assert await _refusal_of(path, b"\xff" * 40) == "MALFORMED"


# -- regions and their ends --------------------------------------------------------------------------------------------


async def test_no_region_can_be_resized_and_no_snapshot_written(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    before = await serving.central(LARGE)
    for descriptor, region in zip(shared.descriptors, shared.regions, strict=True):
        for size in (0, region.size_bytes - 1, region.size_bytes + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
            fcntl.fcntl(descriptor, 1033, 0x8)  # F_ADD_SEALS: they are sealed themselves
    for descriptor, region in list(zip(shared.descriptors, shared.regions, strict=True))[1:]:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, region.size_bytes)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 64)
        reopened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(reopened, region.size_bytes)
        os.close(reopened)
    assert await serving.central(LARGE) == before
    assert (await shared.commit(worker.delta(1)))[0].sequence == 1


async def test_what_is_written_after_the_verdict_changes_nothing(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    _, payload = await shared.commit(worker.delta(1))
    shared.write(b"\xff" * len(payload))
    assert flat(serving.snapshot(worker)) == payload
    assert (await serving.values(LARGE)).parameters.tobytes() == payload[: 4 * LARGE.parameter_count]


async def test_the_delta_region_goes_with_its_connection(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    await shared.commit(worker.delta(1))
    session = serving.server.sessions.live()[0]
    shared.connection.close()
    await eventually_async(lambda: not session.shares_memory)
    async with serving.unchanged(worker):
        await refused(shared.exchange(shared.prepare(worker.delta(2))), "NO_SHARED_MEMORY")
    again = await Sharing.of(worker)
    assert again.response.delta.region != shared.response.delta.region
    assert [one.region for one in again.response.snapshots] == [one.region for one in shared.response.snapshots]
    verdict, payload = await again.commit(worker.delta(3))
    assert verdict.sequence == worker.sequence
    assert payload == flat(serving.snapshot(worker))


async def test_a_newer_connection_takes_the_delta_region_over(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    again = await Sharing.of(worker)
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, shared.connection.recv, 1) == b""
    async with serving.unchanged(worker):
        await refused(shared.exchange(shared.prepare(worker.delta(1))), "NO_SHARED_MEMORY")
    assert (await again.commit(worker.delta(2)))[0].sequence == worker.sequence


async def test_the_connection_ends_with_the_session(serve: Serve, path: Path) -> None:
    _, worker, shared = await sharing(serve, path)
    await worker.leave()
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, shared.connection.recv, 1) == b""
    assert await _refusal(path, worker.session_id) == "UNKNOWN_SESSION"


async def test_a_session_keeps_its_snapshot_when_the_worker_comes_back(serve: Serve, path: Path) -> None:
    """Joining again changes neither m nor s, whether the connection still exists or not."""
    _, worker, shared = await sharing(serve, path)
    _, payload = await shared.commit(worker.delta(1))
    shared.close()
    await worker.join()
    again = await Sharing.of(worker)
    region = again.response.snapshots[0].region
    assert again.snapshots[region][64 : 64 + len(payload)] == payload
    verdict, _ = await again.commit(worker.delta(2))
    assert verdict.sequence == 2


async def test_who_says_nothing_or_too_much_keeps_nobody_from_sharing(serve: Serve, path: Path) -> None:
    serving, worker, shared = await sharing(serve, path)
    silent = [connect(path) for _ in range(20)]
    silent[0].send(b"x" * 5000)
    assert (await shared.commit(worker.delta(1)))[0].sequence == 1
    other = await serving.joined(LARGE)
    assert (await Sharing.of(other)).response.delta.region
    for connection in silent:
        connection.close()


# -- the socket's path -------------------------------------------------------------------------------------------------


async def test_without_a_socket_there_is_no_shared_memory(serve: Serve) -> None:
    serving = await serve()
    (worker,) = await serving.training(1, SMALL)
    assert worker.membership.shared_memory_socket == ""
    handle = {"region": 1, "offset": 64, "byte_count": 4}
    commit = worker.prepare(worker.delta(1), wire_type=SHARED_MEMORY, shared_memory=handle)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send(commit.opening())
        await stream.refused("NO_SHARED_MEMORY")


async def test_the_socket_is_there_while_the_server_serves(serve: Serve, path: Path) -> None:
    serving = await serve(shared_memory_socket=path)
    worker = await serving.joined()
    assert worker.membership.shared_memory_socket == str(path)
    assert path.is_socket()
    await serving.stop()
    assert not path.exists()


async def test_the_socket_of_a_server_that_was_killed_is_replaced(serve: Serve, path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    _, worker, shared = await sharing(serve, path)
    assert (await shared.commit(worker.delta(1)))[0].sequence == 1


async def test_a_path_that_cannot_be_had_is_told(serve: Serve, path: Path, tmp_path: Path) -> None:
    await serve(shared_memory_socket=path)
    with pytest.raises(StartupError, match="another server listens"):
        await Serving.start(shared_memory_socket=path)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(StartupError, match="is no socket"):
        await Serving.start(shared_memory_socket=tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    with pytest.raises(StartupError, match="at most 107: choose a shorter one"):
        await Serving.start(shared_memory_socket=tmp_path / ("x" * 120))
    with pytest.raises(StartupError, match="name a file in a folder that exists"):
        await Serving.start(shared_memory_socket=tmp_path / "nowhere" / "memory")
