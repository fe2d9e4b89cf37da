"""Workers that do with shared memory what they should not, or die with it: nobody else is hurt, and all comes back.

Commits that pass over shared memory while servers, replies and connections are lost are with the others, in test_kills
and test_lost_replies.
"""

import asyncio
import contextlib
import ctypes
import mmap
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_server.service.messages import layout_from
from gem_server.service.shared_memory_socket import SPARE_CONNECTIONS
from gem_worker.client import Client, ClientEvent, ClientSettings
from gem_worker.client.events import EventKind
from gemps.v1 import commit_pb2, errors_pb2, shared_memory_pb2
from numpy.typing import NDArray

from tests.core.slow import word_sum
from tests.faults import half_written, scribbler
from tests.faults.processes import count, kill, start
from tests.figures import Figures
from tests.waiting import eventually_async
from tests.wire.model import SHARED_MEMORY, Model, Tensor, Values
from tests.wire.processes import ServerProcess, killed_script
from tests.wire.refusals import Refusal, answered_or_refused, refused
from tests.wire.sharing import Sharing, answer_to, connect, needs_shared_memory
from tests.wire.worker import RawWorker

pytestmark = needs_shared_memory

# Large enough that the server copies it on a thread of its own, for as long as another process needs to get between.
WIDE = Model((Tensor("weight", (1 << 19,)),))
MADV_REMOVE = 9
MIB = 1 << 20
# Until a call is given up while the server copies, or a worker is killed among its commits: at most.
COPYING_SECONDS, COMMITTING_SECONDS = 0.004, 0.05

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@asynccontextmanager
async def serving(tmp_path: Path, path: Path, **settings: Any) -> AsyncIterator[ServerProcess]:
    """A server process that shares memory; it must still be there in the end."""
    server = await start(tmp_path / "data", shared_memory_socket=str(path), checkpoint_interval=0, **settings)
    try:
        yield server
        assert server.process.returncode is None, "the server has ended"
    finally:
        await kill(server)


async def sharing(server: ServerProcess, model: Model, **fields: Any) -> tuple[RawWorker, Sharing]:
    """A worker that has joined, shares memory and holds the first parameters, which are zeros."""
    worker = await server.joined(model, **fields)
    if not worker.membership.has_parameters:
        await worker.initialize(Values(np.zeros(model.parameter_count, np.float32)))
    shared = await Sharing.of(worker)
    await worker.pull()
    return worker, shared


@contextmanager
def scribbling(how: str, shared: Sharing) -> Iterator[subprocess.Popen[bytes]]:
    """Another process at work on the worker's delta region; killed in the end."""
    descriptor, size = shared.descriptors[0], shared.response.delta.size_bytes
    command = [sys.executable, scribbler.__file__, how, str(descriptor), str(size)]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            yield process
            assert process.poll() is None, "the scribbler has ended by itself"
        finally:
            process.kill()


async def try_commit(worker: RawWorker, shared: Sharing, **fields: Any) -> str:
    """Commit what lies in the region at the moment: "applied", or the reason of the refusal."""
    header = commit_pb2.CommitHeader(
        session_id=worker.session_id,
        sequence=worker.sequence + 1,
        base_version=worker.version,
        wire_type=SHARED_MEMORY,
        byte_count=worker.model.byte_count(),
        shared_memory=shared.handle(),
        **fields,
    )
    stream = worker.commit_stream()
    await stream.send(commit_pb2.CommitRequest(header=header))
    answer = await answered_or_refused(stream.receive(), "BAD_VALUE", "CHECKSUM")
    if isinstance(answer, Refusal):
        return answer.reason
    shared.read(answer)
    await stream.end()
    return "applied"


def scaled_by(scale: float | None) -> dict[str, float]:
    """A header's field, where there is a scale."""
    return {} if scale is None else {"scale": scale}


def address_of(memory: mmap.mmap) -> ctypes.c_void_p:
    return ctypes.c_void_p(np.frombuffer(memory, np.uint8).ctypes.data)


def ones() -> Values:
    return Values(np.ones(WIDE.parameter_count, np.float32))


def zeros() -> Values:
    return Values(np.zeros(WIDE.parameter_count, np.float32))


async def parameters(server: ServerProcess, model: Model = WIDE) -> NDArray[np.float32]:
    return (await server.values(model)).parameters


# -- what lies in a delta region changes while the server copies it ----------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scale", [pytest.param(None, marks=pytest.mark.long), -2.0])
async def test_what_is_judged_is_what_is_applied_however_a_worker_scribbles(
    tmp_path: Path, path: Path, scale: float | None, figures: Figures
) -> None:
    """Each element of each applied delta is one of the two legal values; illegal ones never get in."""
    attempts = count(75, 2000)
    async with serving(tmp_path, path, rule="downpour") as server:
        worker, shared = await sharing(server, WIDE)
        _other, others = await sharing(server, WIDE)
        found: Counter[str] = Counter()
        shared.write(np.full(WIDE.parameter_count, scribbler.FIRST, np.float32).tobytes())
        with scribbling("words", shared):
            for _ in range(attempts):
                found[await try_commit(worker, shared, **scaled_by(scale))] += 1
        sums = (await parameters(server)).astype(np.float64) / (scribbler.SECOND * (scale or 1))
        firsts, seconds = np.divmod(sums, scribbler.FIRST / scribbler.SECOND)
        assert (firsts + seconds == found["applied"]).all()
        # The other worker never noticed.
        verdict, payload = await others.commit(ones())
        assert verdict.staleness == found["applied"]
        assert (np.frombuffer(payload, np.float32) == await parameters(server)).all()
    assert found["applied"] > 0
    figures(
        f"a worker scribbles over its delta while the server copies{' and scales' if scale else ''} it",
        f"{attempts} commits: {found['applied']} applied, {found['BAD_VALUE']} refused for a value that was there for "
        "a moment; each element of each is one of the two legal values, mixed as they were met (the larger one "
        f"{firsts.min():.0f} to {firsts.max():.0f} times), 0 NaN",
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scale", [None, pytest.param(-0.1, marks=pytest.mark.long)])
async def test_word_sum_is_of_what_was_copied(
    tmp_path: Path, path: Path, scale: float | None, figures: Figures
) -> None:
    """With a word sum in the header, that delta and no mixture is applied."""
    attempts = count(75, 2000)
    meant = scribbler.delta(0, WIDE.parameter_count) * np.float32(scale or 1)
    async with serving(tmp_path, path, rule="downpour") as server:
        worker, shared = await sharing(server, WIDE)
        found: Counter[str] = Counter()
        checksum = word_sum(meant.tobytes())
        expected = np.zeros(WIDE.parameter_count, np.float32)
        with scribbling("deltas", shared):
            for _ in range(attempts):
                outcome = await try_commit(worker, shared, payload_crc32c=checksum, **scaled_by(scale))
                found[outcome] += 1
                if outcome == "applied":
                    expected += meant
        assert (await parameters(server) == expected).all()
    assert found["applied"] > 0
    assert found["CHECKSUM"] > 0
    figures(
        f"a delta is overwritten while the server copies{' and scales' if scale else ''} it, with a word sum",
        f"{attempts} commits: {found['applied']} applied, each the delta that was meant; {found['CHECKSUM']} refused",
    )


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_region_whose_pages_are_taken_away_harms_nobody(tmp_path: Path, path: Path, figures: Figures) -> None:
    """A region that could be cut short would be a SIGBUS in the server."""
    commits = count(25, 1000)
    async with serving(tmp_path, path, rule="downpour") as server:
        worker, shared = await sharing(server, WIDE)
        _, others = await sharing(server, WIDE)
        with scribbling("holes", shared):
            for number in range(commits):
                shared.write(np.full(WIDE.parameter_count, scribbler.FIRST, np.float32).tobytes())
                assert await try_commit(worker, shared) == "applied"
                if number % 10 == 0:
                    await others.commit(zeros())
        sums = await parameters(server)
        assert np.isin(sums / np.float32(scribbler.FIRST), np.arange(commits + 1)).all()
    figures(
        "pages of a delta region are taken away, and it is to be cut short",
        f"{commits} commits of it applied, each word as written or 0; server alive, the other worker undisturbed",
    )


async def test_region_cannot_be_changed_through_any_door(tmp_path: Path, path: Path) -> None:
    """What a worker may try with the descriptors of a live server; the snapshot can only be read."""
    async with serving(tmp_path, path) as server:
        worker, shared = await sharing(server, WIDE)
        before = await server.central(WIDE)
        snapshot, size = shared.descriptors[1], shared.regions[1].size_bytes
        for descriptor in shared.descriptors:
            for other in (0, 1, size - 1, size + 1):
                with pytest.raises(PermissionError):
                    os.ftruncate(descriptor, other)
            with pytest.raises(PermissionError):
                os.posix_fallocate(descriptor, size, 4096)
            with pytest.raises(PermissionError):
                os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_TRUNC)
        for mode in (os.O_RDWR, os.O_WRONLY):
            with contextlib.suppress(PermissionError):
                again = os.open(f"/proc/self/fd/{snapshot}", mode)
                try:
                    with pytest.raises(PermissionError):
                        mmap.mmap(again, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                    with pytest.raises(PermissionError):
                        os.pwrite(again, b"x", 64)
                finally:
                    os.close(again)
        keep, punch = scribbler.FALLOC_FL_KEEP_SIZE, scribbler.FALLOC_FL_PUNCH_HOLE
        assert scribbler.libc.fallocate(snapshot, keep | punch, 0, size) == -1
        (mapped,) = shared.snapshots.values()
        for place in (mapped, np.frombuffer(mapped, np.uint8)):
            with pytest.raises((TypeError, ValueError)):
                place[64] = 1
        assert libc.mprotect(address_of(mapped), size, mmap.PROT_READ | mmap.PROT_WRITE) == -1
        assert libc.madvise(address_of(mapped), size, MADV_REMOVE) == -1
        # A private copy is the worker's own affair.
        mmap.mmap(snapshot, size, access=mmap.ACCESS_COPY)[64:68] = b"mine"
        assert await server.central(WIDE) == before
        verdict, payload = await shared.commit(worker.delta(1))
        assert verdict.sequence == 1
        assert payload == (await parameters(server)).tobytes()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_calls_given_up_while_the_server_copies_count_once_and_free_their_buffer(
    tmp_path: Path, path: Path, figures: Figures
) -> None:
    """There is one staging buffer: while a thread still writes into it nobody else may, and afterwards everybody."""
    attempts, draw = count(30, 1000), random.Random(3)
    large, small = (np.full(WIDE.parameter_count, value, np.float32) for value in (scribbler.FIRST, scribbler.SECOND))
    async with serving(tmp_path, path, rule="downpour", staging_buffers=1) as server:
        worker, shared = await sharing(server, WIDE)
        other, others = await sharing(server, WIDE)
        shared.write(large.tobytes())
        for _ in range(attempts):
            header = shared.prepare(Values(large)).header
            stream = worker.commit_stream()
            await stream.send(commit_pb2.CommitRequest(header=header))
            await asyncio.sleep(draw.uniform(0, COPYING_SECONDS))
            stream.cancel()
            await others.commit(Values(small))
            worker.sequence = (await worker.heartbeat()).last_applied_sequence
            if worker.sequence == header.sequence:
                await worker.pull()
        await server.until_idle()
        worker.sequence = (await worker.heartbeat()).last_applied_sequence
        sums = (await parameters(server)) / np.float32(scribbler.SECOND)
        firsts, seconds = np.divmod(sums, np.float32(scribbler.FIRST / scribbler.SECOND))
        assert (firsts == worker.sequence).all()
        assert (seconds == other.sequence).all()
        assert other.sequence == attempts
    figures(
        "calls given up while the server copies out of shared memory",
        f"{attempts} calls, {worker.sequence} of them applied (once), one staging buffer, {other.sequence} commits of "
        "another worker through it: parameters bit-equal",
    )


# -- workers that go ---------------------------------------------------------------------------------------------------


def regions_of(server: ServerProcess) -> int:
    """How many regions the server process has mapped, or has a descriptor of."""
    folder = Path(f"/proc/{server.process.pid}")
    found = {int(line.split()[4]) for line in (folder / "maps").read_text().splitlines() if "memfd:gemps" in line}
    for descriptor in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "memfd:gemps" in os.readlink(descriptor):
                found.add(descriptor.stat().st_ino)
    return len(found)


async def until_regions(server: ServerProcess, number: int) -> None:
    """Until the server has so many regions and no more; it lets go of them when it hears of an end."""
    await eventually_async(lambda: regions_of(server) == number)


@asynccontextmanager
async def half_writing(server: ServerProcess, name: str, commits: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process in the midst of writing a delta; killed in the end."""
    told = [server.address, name, str(WIDE.parameter_count), str(commits)]
    async with killed_script(half_written, *told, says="writing") as process:
        yield process
        assert process.returncode is None


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_worker_killed_while_it_writes_leaves_nothing_and_comes_back(
    tmp_path: Path, path: Path, figures: Figures
) -> None:
    kills, commits = count(2, 30), 4
    async with serving(tmp_path, path, rule="downpour") as server:
        _worker, shared = await sharing(server, WIDE)
        await until_regions(server, 2)
        for number in range(kills):
            async with half_writing(server, "victim", commits):
                await until_regions(server, 4)
                verdict, _ = await shared.commit(zeros())
                assert verdict.version.clock == 1 + (number + 1) * (commits + 1)
            # The snapshot is the session's, which lives until it expires or its worker is back under its name.
            await until_regions(server, 3)
            assert (await parameters(server) == commits * (number + 1)).all()
        (victim,) = [one for one in (await server.status()).workers if one.name == "victim"]
        assert victim.commits == kills * commits
    figures(
        "worker killed while it writes a delta into shared memory, and started again",
        f"{kills} kills, {kills * commits} commits, the next process of that name went on each time: nothing of the "
        "torn deltas applied, regions given back, the other worker undisturbed",
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_worker_killed_at_any_moment_of_its_commits_leaves_whole_ones(
    tmp_path: Path, path: Path, figures: Figures
) -> None:
    kills, draw = count(2, 100), random.Random(4)
    async with serving(tmp_path, path, rule="downpour") as server:
        worker, shared = await sharing(server, WIDE)
        told = [server.address, "victim", str(WIDE.parameter_count), str(10**9)]
        for number in range(1, kills + 1):
            before = (await server.status()).commits
            process = await asyncio.create_subprocess_exec(sys.executable, half_written.__file__, *told)
            try:
                await server.until(lambda status, before=before: status.commits > before + 3)
                await asyncio.sleep(draw.uniform(0, COMMITTING_SECONDS))
            finally:
                process.kill()
                await process.wait()
            await until_regions(server, 3)
            await server.until_idle()
            await shared.commit(ones())
            assert worker.sequence == number
            # A delta is all of it or nothing: each is of ones.
            assert (await parameters(server) == (await server.status()).commits).all()
        commits = (await server.status()).commits
    figures(
        "worker killed at any moment of its commits through shared memory",
        f"{kills} kills, {commits} commits: each applied as a whole, parameters bit-equal, regions given back",
    )


@pytest.mark.long
async def test_memory_comes_back_when_connections_and_sessions_end(
    tmp_path: Path, path: Path, figures: Figures
) -> None:
    number = count(8, 32)
    async with serving(tmp_path, path) as server:

        async def crowd() -> list[tuple[RawWorker, Sharing]]:
            members = [await sharing(server, WIDE) for _ in range(number)]
            for _, shared in members:
                await shared.commit(ones())
            return members

        async def all_leave(members: list[tuple[RawWorker, Sharing]]) -> None:
            for worker, shared in members:
                await worker.leave()
                shared.close()
            await until_regions(server, 0)
            await server.until_idle()

        await all_leave(await crowd())
        before = server.anonymous_bytes()
        members = await crowd()
        assert regions_of(server) == 2 * number
        during = server.anonymous_bytes()
        for _, shared in members:
            shared.connection.close()
        await until_regions(server, number)
        await all_leave(members)
        limit = before + 2 * WIDE.byte_count()
        await eventually_async(lambda: server.anonymous_bytes() <= limit, interval=0.1)
        after = server.anonymous_bytes()
    figures(
        f"memory of {number} workers that share {WIDE.byte_count() >> 20} MiB each way, and go",
        f"anonymous MiB before {before / MIB:.1f}, with them {during / MIB:.1f}, afterwards {after / MIB:.1f}; regions "
        f"0, {2 * number}, 0",
    )


async def test_who_keeps_descriptors_after_its_session_sees_and_changes_nothing(tmp_path: Path, path: Path) -> None:
    async with serving(tmp_path, path, rule="downpour") as server:
        worker, shared = await sharing(server, WIDE)
        await shared.commit(ones())
        (snapshot,) = shared.snapshots.values()
        last = snapshot[:]
        await worker.leave()
        await until_regions(server, 0)
        shared.write(np.full(WIDE.parameter_count, np.nan, np.float32).tobytes())
        other, others = await sharing(server, WIDE)
        await others.commit(ones())
        assert snapshot[:] == last
        assert (await parameters(server) == 2).all()
        again = RawWorker(server.address, WIDE, worker.name)
        server.adopt(again)
        await again.join()
        assert again.session_id != worker.session_id
        fresh = await Sharing.of(again)
        assert not any(fresh.delta[:])
        await again.pull()
        _, payload = await fresh.commit(ones())
        assert (np.frombuffer(payload, np.float32) == 3).all()
        assert snapshot[:] == last
        del other


async def test_superseded_session_loses_its_regions_and_no_commit(tmp_path: Path, path: Path) -> None:
    async with serving(tmp_path, path, rule="downpour") as server:
        worker, shared = await sharing(server, WIDE)
        await shared.commit(ones())
        twin = server.adopt(worker.twin())
        await twin.join()
        assert shared.connection.recv(1) == b""
        await until_regions(server, 0)
        commit = shared.prepare(ones())
        await refused(shared.exchange(commit), "NEWER_SESSION")
        request = shared_memory_pb2.SharedMemoryRequest(session_id=worker.session_id)
        answer, descriptors, _ = answer_to(path, request.SerializeToString())
        assert (answer.refused, descriptors) == (errors_pb2.ERROR_REASON_NEWER_SESSION, [])
        again = await Sharing.of(twin)
        await twin.pull()
        _, payload = await again.commit(ones())
        assert (np.frombuffer(payload, np.float32) == 2).all()


# -- strangers at the socket -------------------------------------------------------------------------------------------


async def patiently(path: Path) -> socket.socket:
    """A connection, made as soon as there is room among those that the server has not taken yet."""

    def look() -> socket.socket | None:
        with contextlib.suppress(BlockingIOError):
            return connect(path)
        return None

    found = await eventually_async(look)
    assert found is not None
    return found


def descriptors_of(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_crowd_that_connects_and_says_nothing_or_garbage_is_bounded(
    tmp_path: Path, path: Path, figures: Figures
) -> None:
    sessions, strangers = 4, count(300, 900)
    async with serving(tmp_path, path, rule="downpour", max_sessions=sessions) as server:
        _, shared = await sharing(server, WIDE)
        before = descriptors_of(server)
        crowd = []
        for number in range(strangers):
            connection = await patiently(path)
            crowd.append(connection)
            with contextlib.suppress(OSError):
                if number % 3 == 1:
                    connection.send(os.urandom(1 + number % 200))
                elif number % 3 == 2:
                    connection.send(
                        shared_memory_pb2.SharedMemoryRequest(session_id=os.urandom(16)).SerializeToString()
                    )
            if number % 50 == 0:
                await shared.commit(ones())
        most = descriptors_of(server) - before
        assert most <= sessions + SPARE_CONNECTIONS
        # The silent ones hold every place: a worker that comes now uses the stream, and the one that shares goes on.
        commits = 1 + (strangers - 1) // 50
        late, events = await asyncio.to_thread(library_commits, server.address, "late")
        assert len(events) <= 1
        _verdict, payload = await shared.commit(ones())
        assert (np.frombuffer(payload, np.float32) == commits + 1 + late).all()
        for connection in crowd:
            connection.close()
        await eventually_async(lambda: descriptors_of(server) <= before + 2)
        _, again = await sharing(server, WIDE)
        await again.commit(ones())
    figures(
        "strangers at the socket of shared memory",
        f"{strangers} connections that say nothing, garbage or an unknown session: at most {most} open at once; "
        "workers that share went on, and one that came meanwhile committed",
    )


def library_commits(address: str, name: str, commits: int = 3, **settings: Any) -> tuple[int, list[str]]:
    """Commits of ones by the client library; how many, and what it said of memory that is not shared."""
    told: list[str] = []

    def on_event(event: ClientEvent) -> None:
        if event.kind is EventKind.NOT_SHARED:
            told.append(event.message)

    held = memoryview(bytearray(WIDE.byte_count()))
    delta = memoryview(np.ones(WIDE.parameter_count, np.float32).tobytes())
    layout = layout_from(WIDE.to_proto())
    client = Client(address, worker_name=name, layout=layout, settings=ClientSettings(**settings), on_event=on_event)
    with client:
        if not client.join().has_parameters:
            client.initialize(memoryview(bytes(WIDE.byte_count())))
        client.pull(held)
        for _ in range(commits):
            assert client.commit(delta, held).applied
    return commits, told


# -- the client library, where there is no shared memory, or no more of it ---------------------------------------------


def put_away(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


def put_a_file_there(path: Path) -> None:
    put_away(path)
    path.write_text("nothing to connect to", encoding="utf-8")


def put_a_dead_socket_there(path: Path) -> None:
    put_away(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))


def put_a_stranger_there(path: Path) -> None:
    """Somebody who listens, and answers with what is no answer."""
    answer_once(path, os.urandom(40), [])


def put_a_cheat_there(path: Path) -> None:
    """Somebody whose regions are right, but not sealed: they can be cut short while a worker uses them."""
    size = scribbler.STAMP_BYTES + WIDE.byte_count()
    descriptors = [os.memfd_create(name) for name in ("delta", "snapshot")]
    regions = []
    for number, descriptor in enumerate(descriptors, 1):
        os.ftruncate(descriptor, size)
        regions.append(
            shared_memory_pb2.SharedMemoryRegion(
                region=number, size_bytes=size, payload_offset=scribbler.STAMP_BYTES, payload_bytes=WIDE.byte_count()
            )
        )
    response = shared_memory_pb2.SharedMemoryResponse(delta=regions[0], snapshots=regions[1:])
    answer_once(path, response.SerializeToString(), descriptors)


def answer_once(path: Path, said: bytes, descriptors: list[int]) -> None:
    """Listen in the server's place, and say this to the first who asks."""
    put_away(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()

    def answer() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(256)
            socket.send_fds(connection, [said], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    threading.Thread(target=answer, daemon=True).start()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(put_away, "", id="no file: a worker on another machine"),
        pytest.param(put_a_file_there, "cannot be reached", id="no socket"),
        pytest.param(put_a_dead_socket_there, "cannot be reached", id="nobody listens"),
        pytest.param(put_a_stranger_there, "no shared memory from", id="somebody else listens"),
        pytest.param(put_a_cheat_there, "could be cut short", id="regions that are not sealed"),
    ],
)
async def test_worker_that_cannot_reach_the_socket_uses_the_stream_and_says_so_once(
    tmp_path: Path, path: Path, change: Callable[[Path], None], told: str
) -> None:
    async with serving(tmp_path, path, rule="downpour") as server:
        change(path)
        commits, events = await asyncio.to_thread(library_commits, server.address, "late", 5)
        assert len(events) == (1 if told else 0)
        assert all(told in event for event in events)
        assert regions_of(server) == 0
        assert (await parameters(server) == commits).all()


@pytest.mark.parametrize(("offered", "wanted"), [(False, True), (True, False)])
async def test_without_the_servers_flag_or_the_clients_will_all_goes_over_the_stream(
    tmp_path: Path, path: Path, offered: bool, wanted: bool
) -> None:
    server = await start(tmp_path / "data", rule="downpour", **({"shared_memory_socket": str(path)} if offered else {}))
    try:
        commits, events = await asyncio.to_thread(library_commits, server.address, "plain", 3, shared_memory=wanted)
        assert events == []
        assert (await parameters(server) == commits).all()
    finally:
        await kill(server)


async def test_whoever_takes_a_session_over_at_the_socket_costs_its_worker_shared_memory_and_no_commit(
    tmp_path: Path, path: Path
) -> None:
    """Only who knows its id can; the session's own worker then goes on with the stream, and says so once."""
    told: list[str] = []

    def on_event(event: ClientEvent) -> None:
        told.append(event.kind.value)

    held = memoryview(bytearray(WIDE.byte_count()))
    delta = memoryview(ones().parameters.tobytes())
    async with serving(tmp_path, path, rule="downpour") as server:
        client = Client(server.address, worker_name="robbed", layout=layout_from(WIDE.to_proto()), on_event=on_event)

        def begin() -> None:
            client.join()
            client.initialize(memoryview(bytes(WIDE.byte_count())))
            client.pull(held)
            assert client.shared_delta is not None
            assert client.commit(delta, held).applied

        def go_on() -> None:
            for _ in range(3):
                assert client.commit(delta, held).applied
            assert client.shared_delta is None

        await asyncio.to_thread(begin)
        session_id = client.session_id
        request = shared_memory_pb2.SharedMemoryRequest(session_id=session_id).SerializeToString()
        answer, descriptors, connection = answer_to(path, request)
        assert not answer.refused
        await asyncio.to_thread(go_on)
        assert told == [EventKind.NOT_SHARED.value]
        assert (await parameters(server) == 4).all()
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        await asyncio.to_thread(client.leave, "done")
        await asyncio.to_thread(client.close)
        await until_regions(server, 0)
