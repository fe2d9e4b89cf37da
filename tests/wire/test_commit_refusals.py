"""A commit whose bytes, order or sizes are wrong is refused, and changes nothing (docs/design.md, section 3)."""

import grpc
import pytest
from gemps.v1 import commit_pb2

from tests.wire.model import INT4_BLOCK, LARGE, SMALL, Model, Tensor
from tests.wire.serving import Serving
from tests.wire.transfer import CHUNK_LIMIT, Commit, cut_payload, footer_of
from tests.wire.worker import CommitStream, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport_and_tls")

KIB = 1024
# Larger than one chunk may be, so that a chunk can be too large without running beyond the payload's end.
WIDE = Model((Tensor("weight", (600_000,)),))


async def one_worker(serving: Serving, model: Model, **join_fields: object) -> RawWorker:
    (worker,) = await serving.training(1, model, **join_fields)
    return worker


def chunked(worker: RawWorker, chunk_bytes: int = 40 * KIB) -> Commit:
    commit = worker.prepare(worker.delta(1), chunk_bytes=chunk_bytes)
    assert len(commit.chunks) > 3
    return commit


def chunk_at(commit: Commit, start: int, end: int) -> bytes:
    return commit.payload[start:end]


async def refused_or_illegal(stream: CommitStream, *reasons: str) -> None:
    """Return the refusal over gRPC. On the lane such a frame is illegal, and END has no reason of errors.proto."""
    if not stream.worker.uses_lane:
        await stream.refused(*reasons)
        return
    with pytest.raises(grpc.aio.AioRpcError, match="a frame of kind 3 with") as raised:
        await stream.receive()
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# -- messages and their order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff\xff",
        b"\x0a\x05\x0a",  # a header that ends too early
        b"\x1a\x7f\x08\x00",  # a chunk that ends too early
        b"\x12\x02\x0d\x00",  # a footer whose crc32c ends too early
        b"\x0b",  # a group that never ends
        b"\x00",  # field number 0
    ],
    ids=["noise", "header", "chunk", "footer", "group", "field-0"],
)
async def test_bytes_that_are_no_protobuf_are_refused(serving: Serving, message: bytes) -> None:
    worker = await one_worker(serving, SMALL)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send(message)
        await stream.refused("MALFORMED")


async def test_bytes_that_are_no_protobuf_among_the_chunks_are_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send_opening(commit)
        await stream.send(commit.chunk_messages()[0])
        await stream.send(b"\x12\xff\xff")
        await stream.refused("MALFORMED")


async def test_commit_without_header_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, SMALL)
    commit = worker.prepare(worker.delta(1))
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send(commit_pb2.CommitRequest(chunk=commit.chunks[0], footer=commit.footer))
        await stream.refused("OUT_OF_ORDER")


async def test_empty_first_message_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, SMALL)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send(b"")
        await refused_or_illegal(stream, "OUT_OF_ORDER", "MALFORMED")


async def test_second_header_before_the_footer_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send_opening(commit)
        await stream.send(commit.chunk_messages()[0])
        await stream.send(commit.opening())
        await stream.refused("OUT_OF_ORDER")


async def test_chunk_of_a_large_payload_in_the_message_of_its_header_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send(commit_pb2.CommitRequest(header=commit.header, chunk=commit.chunks[0]))
        await stream.refused("OUT_OF_ORDER")


async def test_another_session_in_a_later_header_of_the_stream_is_refused(serving: Serving) -> None:
    first, second = await serving.training(2)
    stream = first.commit_stream()
    await stream.send_commit(first.prepare(first.delta(1)))
    await stream.outcome()
    async with serving.unchanged(first):
        await stream.send_commit(second.prepare(second.delta(2)))
        await stream.refused("MALFORMED", "OUT_OF_ORDER")
    await serving.next_commit_works(second)


async def test_parts_may_come_in_any_field_order_within_a_message(serving: Serving) -> None:
    """Protobuf lets the writer choose the order of fields on the wire, and so does the contract."""
    worker = await one_worker(serving, SMALL)
    commit = worker.prepare(worker.delta(1))
    parts = (
        commit_pb2.CommitRequest(footer=commit.footer),
        commit_pb2.CommitRequest(chunk=commit.payload),
        commit_pb2.CommitRequest(header=commit.header),
    )
    message = b"".join(part.SerializeToString() for part in parts)
    stream = worker.commit_stream()
    await stream.send(message)
    assert (await stream.outcome()).verdict.sequence == 1


async def test_fields_of_a_later_contract_are_ignored(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    unknown = b"\x9a\x06\x03abc"  # field 99
    stream = worker.commit_stream()
    await stream.send(commit.opening().SerializeToString() + unknown)
    await stream.proceed()
    for message in commit.chunk_messages():
        await stream.send(unknown + message.SerializeToString() + unknown)
    await stream.send(unknown + commit.closing().SerializeToString())
    assert (await stream.outcome()).verdict.sequence == 1


@pytest.mark.parametrize("session_id", [b"", b"\x01" * 15, b"\x01" * 17])
async def test_session_id_of_another_length_than_16_bytes_is_refused(serving: Serving, session_id: bytes) -> None:
    worker = await one_worker(serving, SMALL)
    await serving.refuses(worker, worker.prepare(worker.delta(1), session_id=session_id), "MALFORMED")


# -- chunks ------------------------------------------------------------------------------------------------------------


async def test_missing_chunk_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    await serving.refuses(worker, commit.with_chunks([commit.chunks[0], *commit.chunks[2:]]), "SIZE_MISMATCH")


async def test_repeated_chunk_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    await serving.refuses(worker, commit.with_chunks([commit.chunks[0], *commit.chunks]), "BAD_CHUNK")


async def test_chunk_above_2_mib_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, WIDE)
    commit = worker.prepare(worker.delta(1))
    cut = CHUNK_LIMIT + 4
    chunks = [chunk_at(commit, 0, cut), chunk_at(commit, cut, len(commit.payload))]
    await serving.refuses(worker, commit.with_chunks(chunks), "BAD_CHUNK")


async def test_chunk_of_2_mib_is_taken(serving: Serving) -> None:
    worker = await one_worker(serving, WIDE)
    outcome = await worker.commit_on_new_stream(worker.prepare(worker.delta(1), chunk_bytes=CHUNK_LIMIT))
    assert outcome.verdict.version.clock == 2


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(40_961, id="within-a-parameter-element"),
        pytest.param(51_277 * 4 + 62, id="within-a-buffer-element"),
        pytest.param(51_277 * 4 + 256 + 3 + 4, id="within-an-int64"),
    ],
)
async def test_chunk_may_be_cut_within_an_element(serving: Serving, cut: int) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    chunks = [chunk_at(commit, 0, cut), chunk_at(commit, cut, len(commit.payload))]
    outcome = await worker.commit_on_new_stream(commit.with_chunks(chunks))
    assert outcome.reply.values.rest == worker.delta(1).rest


async def test_chunk_may_be_cut_within_a_block(serving: Serving) -> None:
    worker = await one_worker(serving, WIDE, delta_wire_types=[INT4_BLOCK])
    commit = worker.prepare(worker.delta(1))
    cut = 132 * 100 + 9
    chunks = [chunk_at(commit, 0, cut), chunk_at(commit, cut, len(commit.payload))]
    outcome = await worker.commit_on_new_stream(commit.with_chunks(chunks))
    assert outcome.verdict.version.clock == 2


async def test_chunk_beyond_the_end_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    last = commit.chunks[-1]
    chunks = [*commit.chunks[:-1], last + b"\0" * 8]
    await serving.refuses(worker, commit.with_chunks(chunks), "BAD_CHUNK")


async def test_chunk_after_the_last_byte_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    chunks = [*commit.chunks, b"\0" * 4]
    await serving.refuses(worker, commit.with_chunks(chunks), "BAD_CHUNK")


# -- sizes and checksum ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
@pytest.mark.parametrize("difference", [-4, 4, 2**40])
async def test_wrong_byte_count_in_the_header_is_refused(serving: Serving, model: Model, difference: int) -> None:
    worker = await one_worker(serving, model)
    size = model.byte_count()
    refusal = await serving.refuses(
        worker, worker.prepare(worker.delta(1), byte_count=size + difference), "SIZE_MISMATCH"
    )
    assert str(size) in refusal.message + str(refusal.metadata)


async def test_more_samples_than_sums_can_hold_are_refused(serving: Serving) -> None:
    (worker,) = await serving.training()
    await serving.refuses(worker, worker.prepare(worker.delta(1)).with_header(samples=2**63), "MALFORMED")


async def test_footer_before_the_last_chunk_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, LARGE)
    commit = chunked(worker)
    first = commit.chunks[:2]
    sent = b"".join(first)
    shortened = Commit(commit.header, commit.payload, first, footer_of(sent))
    await serving.refuses(worker, shortened, "SIZE_MISMATCH")


async def test_footer_without_any_chunk_is_refused(serving: Serving) -> None:
    worker = await one_worker(serving, SMALL)
    commit = worker.prepare(worker.delta(1))
    async with serving.unchanged(worker):
        stream = worker.commit_stream()
        await stream.send(commit_pb2.CommitRequest(header=commit.header, footer=commit.footer))
        await stream.refused("SIZE_MISMATCH", "OUT_OF_ORDER")


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_wrong_checksum_in_the_footer_is_refused(serving: Serving, model: Model) -> None:
    worker = await one_worker(serving, model)
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * KIB)
    await serving.refuses(worker, commit.with_footer(crc32c=commit.footer.crc32c ^ 1), "CHECKSUM")


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_flipped_bit_in_a_chunk_is_refused(serving: Serving, model: Model) -> None:
    worker = await one_worker(serving, model)
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * KIB)
    damaged = bytearray(commit.payload)
    # The lowest bit of the third parameter's mantissa: the value stays harmless, only the checksum can tell.
    damaged[8] ^= 1
    wrong = commit.with_chunks(cut_payload(bytes(damaged), 64 * KIB))
    await serving.refuses(worker, wrong, "CHECKSUM")


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_header_whose_checksum_is_not_the_footers_is_refused(serving: Serving, model: Model) -> None:
    worker = await one_worker(serving, model)
    commit = worker.prepare(worker.delta(1), chunk_bytes=64 * KIB)
    await serving.refuses(worker, commit.with_header(payload_crc32c=commit.footer.crc32c ^ 1), "CHECKSUM")
