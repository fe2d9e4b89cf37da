"""Commits and first parameters that end too early, or whose parts are wrong, at every place: nothing comes of them."""

import copy
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.processes import TRANSPORTS, count, kill, start
from tests.figures import Figures
from tests.forms import FULL
from tests.wire.model import DELTA_WIRE_TYPES, LARGE
from tests.wire.processes import ServerProcess, doomed_process
from tests.wire.refusals import Refusal, answered_or_refused, refused
from tests.wire.worker import CommitStream, RawWorker

# A transfer has a header, five or more chunks, and a footer.
PARTS = 5
BUFFERS = 16


def commit_of(worker: RawWorker) -> list[Any]:
    payload = worker.model.byte_count(worker.delta_wire_type)
    return worker.prepare(worker.delta(1), chunk_bytes=payload // PARTS).messages()


def upload_of(worker: RawWorker) -> list[Any]:
    payload = worker.model.byte_count()
    return worker.upload(worker.model.random_values(1), payload // PARTS)


async def until_torn_away(server: ServerProcess, clock: int) -> None:
    """Until all buffers are free again; nothing was applied."""
    await server.until_idle()
    assert (await server.status()).version.clock == clock


# -- clients that die --------------------------------------------------------------------------------------------------


async def killed_at_every_message(
    server: ServerProcess, folder: Path, method: str, workers: Sequence[RawWorker], transfers: Sequence[list[Any]]
) -> int:
    """Clients that have sent 1, 2, ... messages of their transfers and are killed; how many."""
    clock = (await server.status()).version.clock
    torn = [messages[:sent] for sent, messages in enumerate(transfers, 1)]
    # One process of all of them, or one each.
    # As each message names its session, one call of gRPC's may be anybody's; a connection of the lane is its worker's.
    on_lane = method == "Commit" and RawWorker.uses_lane
    for number, streams in enumerate([[one] for one in torn] if FULL or on_lane else [torn]):
        async with doomed_process(workers[number % len(workers)], folder, method, streams) as process:
            await server.until_staged(len(streams))
            process.kill()
        await until_torn_away(server, clock)
    for worker in workers:
        assert (await worker.heartbeat()).last_applied_sequence == 0
    return len(torn)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("each_transport_and_tls", TRANSPORTS if FULL else TRANSPORTS[1:2], indirect=True)
async def test_client_killed_at_any_message_leaves_nothing(
    tmp_path: Path, each_transport_and_tls: str, figures: Figures
) -> None:
    server = await start(tmp_path / "data", staging_buffers=BUFFERS)
    try:
        first = await server.joined(LARGE)
        messages = upload_of(first)
        others = [first, *[await server.joined(LARGE) for _ in messages[2:]]]
        uploads = [upload_of(worker) for worker in others]
        killed = await killed_at_every_message(server, tmp_path, "Initialize", others, uploads)
        for worker in others:
            await worker.leave()
        for wire_type in DELTA_WIRE_TYPES:
            (first,) = await server.training(1, LARGE, delta_wire_types=[wire_type])
            others = await server.training(len(commit_of(first)) - 2, LARGE, delta_wire_types=[wire_type])
            workers = [first, *others]
            before = await server.central(LARGE)
            killed += await killed_at_every_message(server, tmp_path, "Commit", workers, [*map(commit_of, workers)])
            assert await server.central(LARGE) == before
            await server.next_commit_works(first)
            for worker in workers:
                await worker.leave()
    finally:
        await kill(server)
    figures(
        f"client killed (SIGKILL) at every message, {each_transport_and_tls}",
        f"{killed} clients, in each wire type and in Initialize: 0 applied, version unchanged, {killed} buffers freed",
    )


# -- parts that are wrong ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A transfer that is not as it should be, and how the server may refuse it; no reasons: it is cancelled."""

    messages: list[Any]
    reasons: tuple[str, ...]


def damaged(message: Any, draw: random.Random) -> Any:
    """One bit of a chunk's data, or of the footer's checksum, is another."""
    message = copy.deepcopy(message)
    if message.chunk:
        data = bytearray(message.chunk)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        message.chunk = bytes(data)
    else:
        message.footer.crc32c ^= 1 << draw.randrange(32)
    return message


def wrong_at(messages: list[Any], place: int, draw: random.Random) -> Iterator[tuple[str, Wrong]]:
    """What can be wrong with the message at this place; 0 is the header, the last the footer."""
    head, this, tail = messages[:place], messages[place], messages[place + 1 :]
    # Chunks have no numbers: in another order they are other bytes, which may also be no numbers.
    order = ("OUT_OF_ORDER", "BAD_CHUNK", "SIZE_MISMATCH", "CHECKSUM", "BAD_VALUE")
    yield "half-closed", Wrong(head, ("OUT_OF_ORDER",))
    yield "cancelled", Wrong(head, ())
    yield "cut short", Wrong([*head, this.SerializeToString()[:-1], *tail], ("MALFORMED",))
    if tail:
        yield "reordered", Wrong([*head, tail[0], this, *tail[1:]], order)
        yield "repeated", Wrong([*head, this, this, *tail], order)
        yield "missing", Wrong([*head, *tail], order)
    if head:
        yield "damaged", Wrong([*head, damaged(this, draw), *tail], ("CHECKSUM", "BAD_VALUE"))


async def refuses_upload(server: ServerProcess, worker: RawWorker, wrong: Wrong) -> None:
    """Uploads it and half-closes, or cancels; what must hold then holds."""
    stream = worker.initialize_stream()
    for message in wrong.messages:
        await stream.send(message)
    if wrong.reasons:
        await stream.half_close()
        await refused(stream.answer(), *wrong.reasons)
    else:
        stream.cancel()
    await until_torn_away(server, clock=0)


async def answered_or_ended(stream: CommitStream, worker: RawWorker, *reasons: str) -> Any:
    """The answer, or None where a message that was out of turn ended a connection of the lane."""
    try:
        return await answered_or_refused(stream.receive(), *reasons)
    except AssertionError:
        if worker.uses_lane and re.match("a frame of kind 3|a first message", await stream.call.details()):
            return Refusal(await stream.call.code(), "", await stream.call.details(), {}, None)
        raise


async def refuses_commit(server: ServerProcess, worker: RawWorker, wrong: Wrong) -> None:
    """The same for a commit."""
    stream = worker.commit_stream()
    for number, message in enumerate(wrong.messages):
        await stream.send(message)
        if number == 0 and not isinstance(message, bytes) and message.HasField("header"):
            await stream.proceed()
    if wrong.reasons:
        is_complete = any(not isinstance(one, bytes) and one.HasField("footer") for one in wrong.messages)
        if not (worker.uses_lane and is_complete):  # there it is a CANCEL, and could overtake the refusal
            await stream.half_close()
        answer = await answered_or_ended(stream, worker, *wrong.reasons)
        # A stream without any message is no torn commit, and on the lane nothing is said to a worker that gives up.
        is_silent = worker.uses_lane and not is_complete
        assert isinstance(answer, Refusal) or (answer is None and (is_silent or not wrong.messages)), answer
    else:
        stream.cancel()
    await until_torn_away(server, worker.version.clock)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("each_transport_and_tls", TRANSPORTS if FULL else TRANSPORTS[2:3], indirect=True)
async def test_transfer_with_anything_wrong_in_it_leaves_nothing(
    tmp_path: Path, each_transport_and_tls: str, figures: Figures
) -> None:
    draw = random.Random(6)
    found: dict[str, int] = {}
    # With a single buffer, one that is lost stops everything.
    server = await start(tmp_path / "data", staging_buffers=1)
    try:
        worker = await server.joined(LARGE)
        messages = upload_of(worker)
        for _ in range(count(1, 20)):
            for place in range(len(messages)):
                for name, wrong in wrong_at(messages, place, draw):
                    await refuses_upload(server, worker, wrong)
                    found[name] = found.get(name, 0) + 1
        await worker.initialize()
        await worker.leave()
        for wire_type in DELTA_WIRE_TYPES:
            (worker,) = await server.training(1, LARGE, delta_wire_types=[wire_type])
            before = await server.central(LARGE)
            messages = commit_of(worker)
            for _ in range(count(1, 20)):
                for place in range(len(messages)):
                    for name, wrong in wrong_at(messages, place, draw):
                        await refuses_commit(server, worker, wrong)
                        found[name] = found.get(name, 0) + 1
            assert await server.central(LARGE) == before
            assert (await worker.heartbeat()).last_applied_sequence == 0
            await server.next_commit_works(worker)
            await worker.leave()
    finally:
        await kill(server)
    figures(
        f"transfers with something wrong at every place, {each_transport_and_tls}",
        f"{', '.join(f'{number} {name}' for name, number in found.items())}, in each wire type and in Initialize: "
        "0 applied, version unchanged, buffers freed",
    )
