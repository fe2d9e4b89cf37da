"""Initialize: the first complete, valid upload wins; nothing else leaves a trace."""

import asyncio
import gc
import os
from pathlib import Path

import grpc
import numpy as np
import pytest
from gem_server.flow.initialize_service import Upload
from gemps.v1 import parameters_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model, Tensor, Values
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.transfer import CHUNK_LIMIT
from tests.wire.worker import RawWorker, all_of

ACCEPTED = parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED
ALREADY_INITIALIZED = parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
CHUNK = 40 * 1024


async def refuse_upload(serving: Serving, worker: RawWorker, messages: list[object], *reasons: str) -> str:
    """A wrong upload is refused, binds nothing, and the same worker's good one is accepted afterwards."""
    refusal = await refused(worker.initialize(messages=messages), *reasons)
    assert (await serving.status()).version.clock == 0
    values = worker.model.random_values(5)
    assert (await worker.initialize(values)).outcome == ACCEPTED
    pulled = (await worker.pull()).values
    np.testing.assert_array_equal(pulled.parameters, values.parameters)
    assert pulled.rest == values.rest
    return refusal.message


def upload(worker: RawWorker, chunk_bytes: int = CHUNK) -> list[parameters_pb2.InitializeRequest]:
    return worker.upload(worker.model.random_values(1), chunk_bytes)


def uploads() -> list[Upload]:
    """Return the uploads that the server, which is in this process, still has in memory."""
    return [one for one in gc.get_objects() if type(one) is Upload]  # asking all of them for their class warns of some


async def test_first_upload_becomes_the_first_parameters(serving: Serving) -> None:
    worker = await serving.joined(LARGE)
    values = LARGE.random_values(3)
    answer = await worker.initialize(values)
    assert answer.outcome == ACCEPTED
    assert (answer.version.incarnation, answer.version.clock) == (worker.membership.incarnation, 1)
    pulled = await worker.pull()
    assert pulled.version == answer.version
    assert bytes(pulled.payload) == LARGE.encode(values)


async def test_whole_upload_may_travel_in_one_message(serving: Serving) -> None:
    worker = await serving.joined()
    header, chunk, footer = upload(worker)
    whole = parameters_pb2.InitializeRequest(header=header.header, chunk=chunk.chunk, footer=footer.footer)
    assert (await worker.initialize(messages=[whole])).outcome == ACCEPTED


async def test_later_upload_is_told_that_parameters_exist(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    other = await serving.joined()
    async with serving.unchanged(worker):
        answer = await other.initialize(SMALL.random_values(9))
        assert answer.outcome == ALREADY_INITIALIZED
        assert answer.version == worker.version


async def test_winner_that_uploads_again_is_told_that_parameters_exist(serving: Serving) -> None:
    worker = await serving.joined()
    await worker.initialize()
    assert (await worker.initialize()).outcome == ALREADY_INITIALIZED


async def test_upload_under_way_is_told_before_its_end(serving: Serving) -> None:
    """A worker does not have to finish an upload that has lost."""
    loser = await serving.joined(LARGE)
    stream = loser.initialize_stream()
    messages = upload(loser)
    for message in messages[:3]:
        await stream.send(message)
    (winner,) = await serving.training(1, LARGE)
    answer = await stream.answer()
    assert answer.outcome == ALREADY_INITIALIZED
    assert answer.version == winner.version


async def test_upload_that_came_second_is_forgotten(serving: Serving) -> None:
    """Its memory, which has the size of the model, is freed."""
    first, second = await serving.joined(LARGE), await serving.joined(LARGE)
    stream = second.initialize_stream()
    for message in upload(second)[:4]:
        await stream.send(message)
    await serving.until_staged(1)
    assert len(uploads()) == 1
    await first.initialize()
    assert (await stream.answer()).outcome == ALREADY_INITIALIZED
    await serving.until_idle()
    assert uploads() == []


async def test_eight_initialize_at_once_and_the_first_is_killed_midway(serving: Serving) -> None:
    workers = [await serving.joined(LARGE) for _ in range(8)]
    values = [LARGE.random_values(seed) for seed in range(8)]
    streams = [worker.initialize_stream() for worker in workers]
    uploads = [worker.upload(v, CHUNK) for worker, v in zip(workers, values, strict=True)]
    for step in range(3):
        for stream, messages in zip(streams, uploads, strict=True):
            await stream.send(messages[step])
    await workers[0].close()

    async def finish(number: int) -> parameters_pb2.InitializeResponse:
        for message in uploads[number][3:]:
            await streams[number].send(message)
        await streams[number].half_close()
        return await streams[number].answer()

    answers = await all_of(*(finish(number) for number in range(1, 8)))
    outcomes = [answer.outcome for answer in answers]
    assert sorted(outcomes) == [ACCEPTED] + 6 * [ALREADY_INITIALIZED]
    winner = 1 + outcomes.index(ACCEPTED)
    assert {answer.version.clock for answer in answers} == {1}
    for worker in workers[1:]:
        pulled = await worker.pull()
        assert bytes(pulled.payload) == LARGE.encode(values[winner])
    for worker in workers[1:]:
        await serving.next_commit_works(worker) if worker is workers[1] else await worker.leave()


async def test_upload_torn_at_any_message_binds_nothing(serving: Serving) -> None:
    worker = await serving.joined(LARGE)
    messages = upload(worker)
    for count in range(len(messages)):
        stream = worker.initialize_stream()
        for message in messages[:count]:
            await stream.send(message)
        stream.cancel()
    for count in range(len(messages)):
        stream = worker.initialize_stream()
        for message in messages[:count]:
            await stream.send(message)
        await stream.half_close()
        # A half-close without a footer is a torn upload, and nobody may take it for a complete one.
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.answer()
    assert (await serving.status()).version.clock == 0
    await serving.until_idle()
    assert (await worker.initialize()).outcome == ACCEPTED


async def test_upload_of_an_unknown_session_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    messages = upload(worker)
    messages[0].header.session_id = os.urandom(16)
    await refuse_upload(serving, worker, messages, "UNKNOWN_SESSION")


async def test_upload_without_header_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    await refuse_upload(serving, worker, upload(worker)[1:], "OUT_OF_ORDER")


async def test_upload_with_two_headers_is_refused(serving: Serving) -> None:
    worker = await serving.joined(LARGE)
    messages = upload(worker)
    await refuse_upload(serving, worker, [messages[0], messages[1], messages[0], *messages[2:]], "OUT_OF_ORDER")


async def test_upload_of_bytes_that_are_no_protobuf_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    await refuse_upload(serving, worker, [b"\xff\xff\xff"], "MALFORMED")


async def test_upload_with_a_missing_chunk_is_refused(serving: Serving) -> None:
    worker = await serving.joined(LARGE)
    messages = upload(worker)
    await refuse_upload(serving, worker, messages[:2] + messages[3:], "SIZE_MISMATCH")


async def test_upload_with_a_chunk_above_2_mib_is_refused(serving: Serving) -> None:
    worker = await serving.joined(Model((Tensor("weight", (600_000,)),)))
    await refuse_upload(serving, worker, upload(worker, CHUNK_LIMIT + 4), "BAD_CHUNK")


async def test_upload_whose_header_has_the_wrong_size_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    messages = upload(worker)
    # As if FROZEN tensors travelled.
    messages[0].header.byte_count = SMALL.byte_count() + 6
    message = await refuse_upload(serving, worker, messages, "SIZE_MISMATCH")
    assert str(SMALL.byte_count()) in message


async def test_upload_with_the_wrong_checksum_is_refused(serving: Serving) -> None:
    worker = await serving.joined(LARGE)
    messages = upload(worker)
    messages[-1].footer.crc32c ^= 0x8000
    await refuse_upload(serving, worker, messages, "CHECKSUM")


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_upload_with_an_illegal_parameter_is_refused(serving: Serving, value: float) -> None:
    worker = await serving.joined()
    values = SMALL.random_values(1)
    values.parameters[631] = value
    assert "bias" in await refuse_upload(serving, worker, worker.upload(values), "BAD_VALUE")


async def test_parameters_that_legal_deltas_made_larger_than_any_of_them_begin_a_new_run(serve: Serve) -> None:
    """The next server accepts the parameters that a server has sent, bit for bit."""
    older, newer = await serve(), await serve()
    (worker,) = await older.training(1)
    delta = worker.delta(1)
    delta.parameters[::2], delta.parameters[1::2] = 1e30, -1e30
    for _ in range(3):
        await worker.commit(delta)
    pulled = (await older.read(SMALL)).values
    assert np.abs(pulled.parameters).min() > 2e30
    heir = await newer.joined()
    assert (await heir.initialize(pulled)).outcome == ACCEPTED
    again = (await newer.read(SMALL)).values
    assert (again.parameters.tobytes(), again.rest) == (pulled.parameters.tobytes(), pulled.rest)


async def test_upload_with_an_illegal_buffer_is_refused(serving: Serving) -> None:
    model = Model((Tensor("weight", (3,)), Tensor("mask", (2,), "buffer", "bool")))
    worker = await serving.joined(model)
    wrong = Values(model.random_values(1).parameters, b"\x00\x02")
    assert "mask" in await refuse_upload(serving, worker, worker.upload(wrong), "BAD_VALUE")


async def test_uploads_that_stall_do_not_stop_a_later_one(serve: Serve) -> None:
    """More uploaders than staging buffers, all of them asleep: a ninth that works must get through."""
    serving = await serve(staging_buffers=2, stall_timeout=0.2)
    sleepers = [await serving.joined(LARGE) for _ in range(4)]
    for sleeper in sleepers:
        stream = sleeper.initialize_stream()
        for message in upload(sleeper)[:2]:
            await stream.send(message)
    worker = await serving.joined(LARGE)
    answer = await asyncio.wait_for(worker.initialize(), 60)
    assert answer.outcome == ACCEPTED


async def test_adapter_is_kept_as_it_is_over_a_restart_and_comes_with_the_layout(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path)
    worker = await serving.joined()
    messages = upload(worker)
    messages[0].header.adapter = adapter = bytes(range(256)) * 128
    assert (await worker.initialize(messages=messages)).outcome == ACCEPTED
    assert (await serving.read(SMALL, with_layout=True)).header.adapter == adapter
    assert not (await serving.read(SMALL)).header.adapter
    await serving.close()
    await serving.stop()
    again = await serve(data_dir=tmp_path, resume=True)
    assert (await again.read(SMALL, with_layout=True)).header.adapter == adapter


async def test_longer_adapter_is_refused(serving: Serving) -> None:
    worker = await serving.joined()
    messages = upload(worker)
    messages[0].header.adapter = bytes(32_769)
    assert "at most 32768" in await refuse_upload(serving, worker, messages, "MALFORMED")
