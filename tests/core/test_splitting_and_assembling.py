from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import (
    Assembler,
    BadValueError,
    ChecksumError,
    ChunkError,
    DecodingAssembler,
    ElementType,
    Layout,
    PayloadFormat,
    RawAssembler,
    SizeMismatchError,
    Splitter,
    TensorKind,
    TensorSpec,
    WireType,
    crc32c,
)
from gem_core.chunking import ScaledSplitter
from gem_core.payload import MAX_CHUNK_BYTES
from gem_core.wire_kernels import COMPILED
from gem_core.wire_types import NUMPY, Codec, decode, encode
from tests.core.transfers import ENCODED, Transfer, awkward_layout, awkward_transfer, deliver


@pytest.mark.parametrize("wire_type", ENCODED)
def test_what_is_split_is_assembled_again(wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    assembler, parameters, rest = transfer.decoder()
    for data in transfer.chunks:
        assert not assembler.complete
        assembler.add(memoryview(data))
    assembler.finish(transfer.crc32c)
    assert assembler.complete
    assert assembler.received == transfer.payload.byte_count
    expected = np.empty_like(parameters)
    assert decode(wire_type, encode(wire_type, transfer.parameters), expected) is None
    assert parameters.tobytes() == expected.tobytes()
    assert bytes(rest) == transfer.rest


@pytest.mark.parametrize("wire_type", ENCODED)
@given(chunk_bytes=st.integers(260, 6000))
@settings(deadline=None, max_examples=30)
def test_chunk_size_changes_neither_bytes_nor_checksum(wire_type: WireType, chunk_bytes: int) -> None:
    transfer = awkward_transfer(wire_type)
    other = Transfer(transfer.payload, transfer.parameters, transfer.rest, chunk_bytes)
    assert other.bytes == transfer.bytes
    assert other.crc32c == transfer.crc32c == crc32c(transfer.bytes)
    assert all(1 <= len(data) <= chunk_bytes for data in other.chunks)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Yield pieces of these sizes in turn, which may be cut within elements."""
    pieces, number = [], 0
    while data:
        size = sizes[number % len(sizes)]
        pieces.append(data[:size])
        data, number = data[size:], number + 1
    return pieces


@pytest.mark.parametrize("codec", [NUMPY, COMPILED], ids=["numpy", "compiled"])
@pytest.mark.parametrize("kind", ["raw", "decoding"])
@pytest.mark.parametrize("wire_type", ENCODED)
@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=20))
@settings(deadline=None, max_examples=25)
def test_chunks_may_be_cut_anywhere(wire_type: WireType, kind: str, codec: Codec, sizes: list[int]) -> None:
    """Chunks may also be cut within an element or a block, whose beginning then waits for the next chunk."""
    transfer = awkward_transfer(wire_type)
    usual, other = Sink(transfer, kind, codec), Sink(transfer, kind, codec)
    for data in transfer.chunks:
        usual.assembler.add(data)
    position = 0
    for data in cut(transfer.bytes, sizes):
        other.assembler.add(memoryview(data))
        position += len(data)
        assert other.assembler.received == transfer.payload.border_at_or_before(position)
    for one in (usual, other):
        one.assembler.finish(transfer.crc32c)
    assert other.made == usual.made


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_footer_within_an_element_is_refused(missing: int) -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    assembler, _, _ = transfer.decoder()
    assembler.add(transfer.bytes[:-missing])
    with pytest.raises(SizeMismatchError, match=f"after {3694 - missing} of 3694 bytes"):
        assembler.finish(transfer.crc32c)


@pytest.mark.parametrize("scale", [-0.05, 3.0, 0.0])
@pytest.mark.parametrize("wire_type", ENCODED)
def test_parameters_of_a_complete_payload_are_multiplied(wire_type: WireType, scale: float) -> None:
    """The products are rounded to float32, and the rest does not change."""
    transfer = awkward_transfer(wire_type)
    assembler, parameters, rest = transfer.decoder()
    deliver(assembler, transfer)
    expected = parameters * np.float32(scale)
    assembler.multiply(scale)
    assert parameters.tobytes() == expected.tobytes()
    assert bytes(rest) == transfer.rest


def test_a_product_that_is_too_large_is_refused() -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    transfer.parameters[77] = 1e30
    other = Transfer(transfer.payload, transfer.parameters, transfer.rest)
    assembler, _, _ = other.decoder()
    deliver(assembler, other)
    with pytest.raises(BadValueError, match=r"parameter 'weight', element 77, is 2e\+30, beyond the limit of 1e30"):
        assembler.multiply(2.0)


@pytest.mark.parametrize("wire_type", ENCODED)
def test_raw_bytes_are_kept_as_sent(wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    into = bytearray(transfer.payload.byte_count)
    assembler = RawAssembler(transfer.payload, memoryview(into))
    deliver(assembler, transfer)
    assert bytes(into) == transfer.bytes


@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_transfer_torn_after_any_chunk_goes_on_where_it_ended(wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    for survived in range(len(transfer.chunks) + 1):
        into = memoryview(bytearray(transfer.payload.byte_count))
        torn = RawAssembler(transfer.payload, into)
        for data in transfer.chunks[:survived]:
            torn.add(memoryview(data))
        # Another chunk size, so that the rest is cut elsewhere than before.
        splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 777, start=torn.received)
        resumed = RawAssembler(transfer.payload, into, start=torn.received, crc32c=torn.crc32c)
        for data in splitter:
            resumed.add(data)
        resumed.finish(splitter.crc32c)
        assert bytes(into) == transfer.bytes
        assert splitter.crc32c == transfer.crc32c


@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_splitter_may_start_anywhere(wire_type: WireType) -> None:
    """The splitter's checksum is of the whole payload all the same."""
    transfer = awkward_transfer(wire_type)
    for start in [*range(0, 300, 7), 3600, 3601, transfer.payload.byte_count - 1, transfer.payload.byte_count]:
        if start <= transfer.payload.byte_count:
            splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 777, start=start)
            assert b"".join([bytes(data) for data in splitter]) == transfer.bytes[start:]
            assert splitter.crc32c == transfer.crc32c
    with pytest.raises(ChunkError, match="is not in this payload"):
        Splitter(transfer.payload, transfer.parameters, transfer.rest, 777, start=transfer.payload.byte_count + 1)


def test_float32_chunks_are_views_of_the_parameters() -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 600)
    boundary = transfer.payload.parameter_bytes
    offset = 0
    for data in splitter:
        offset += data.nbytes
        inside = offset <= boundary
        assert np.shares_memory(np.frombuffer(data, np.uint8), transfer.parameters) == inside


def test_encoded_chunks_stay_valid_after_the_next_one() -> None:
    transfer = awkward_transfer(WireType.INT4_BLOCK)
    held = list(Splitter(transfer.payload, transfer.parameters, transfer.rest, 600))
    assert b"".join(held) == transfer.bytes


def parameter(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, ElementType.FLOAT32, TensorKind.PARAMETER)


@pytest.mark.parametrize("wire_type", ENCODED)
@pytest.mark.parametrize(
    "layout",
    [
        Layout([]),
        Layout([parameter("w", 0)]),
        Layout([parameter("w")]),
        Layout([parameter("w", 256)]),
        Layout([parameter("w", 257)]),
        Layout([parameter("w", 255), parameter("v", 0), parameter("u", 2)]),
        Layout([TensorSpec("frozen", (3,), ElementType.BOOL, TensorKind.FROZEN, sha256=bytes(32))]),
        Layout([TensorSpec("mean", (3,), ElementType.FLOAT32, TensorKind.BUFFER)]),
    ],
    ids=["no tensors", "0 elements", "scalar", "1 block", "1 block and 1", "border in tensors", "frozen", "buffers"],
)
def test_unusual_layouts_travel(layout: Layout, wire_type: WireType) -> None:
    payload = PayloadFormat(layout, wire_type)
    values = np.linspace(-1, 1, layout.parameter_count, dtype=np.float32)
    transfer = Transfer(payload, values, bytes(payload.rest_bytes), chunk_bytes=260)
    assembler, parameters, _ = transfer.decoder()
    deliver(assembler, transfer)
    # Half a step of INT4_BLOCK, whose largest value is 1.
    np.testing.assert_allclose(parameters, values, atol=0.501 / 7)


# -- chunks that are received piece by piece ---------------------------------------------------------------------------

CODECS = pytest.mark.parametrize("codec", [NUMPY, COMPILED], ids=["numpy", "compiled"])
PIECES = st.lists(st.integers(1, 700), min_size=1, max_size=20)


class Sink:
    """An assembler, raw or decoding, and its results."""

    def __init__(self, transfer: Transfer, kind: str, codec: Codec) -> None:
        self._into = bytearray(transfer.payload.byte_count)
        self._parameters = np.zeros(transfer.payload.layout.parameter_count, np.float32)
        self._rest = bytearray(transfer.payload.rest_bytes)
        self.assembler: Assembler = RawAssembler(transfer.payload, memoryview(self._into))
        if kind == "decoding":
            self.assembler = DecodingAssembler(transfer.payload, self._parameters, memoryview(self._rest), codec)

    @property
    def made(self) -> bytes:
        return bytes(self._into) + self._parameters.tobytes() + bytes(self._rest)


def receive(assembler: Assembler, data: bytes, pieces: list[int], beforehand: int = 0) -> None:
    """Receive a chunk as a transport does: its beginning came with the message before, the rest in arbitrary pieces."""
    assembler.begin(len(data), memoryview(data)[:beforehand])
    position, number = min(beforehand, len(data)), 0
    while position < len(data):
        space = assembler.space
        assert 1 <= len(space) <= len(data) - position
        count = min(len(space), pieces[number % len(pieces)])
        space[:count] = data[position : position + count]
        assembler.filled(count)
        position, number = position + count, number + 1
    assert not len(assembler.space)


@CODECS
@pytest.mark.parametrize("kind", ["raw", "decoding"])
@pytest.mark.parametrize("wire_type", ENCODED)
@given(chunk_bytes=st.integers(260, 6000), pieces=PIECES, beforehand=st.integers(0, 1100))
@settings(deadline=None, max_examples=25)
def test_chunks_in_any_pieces_are_the_same_as_whole_ones(
    wire_type: WireType, kind: str, codec: Codec, chunk_bytes: int, pieces: list[int], beforehand: int
) -> None:
    awkward = awkward_transfer(wire_type)
    transfer = Transfer(awkward.payload, awkward.parameters, awkward.rest, chunk_bytes)
    whole, pieced = Sink(transfer, kind, codec), Sink(transfer, kind, codec)
    for data in transfer.chunks:
        whole.assembler.add(memoryview(data))
        receive(pieced.assembler, data, pieces, beforehand)
        for attribute in ("received", "crc32c", "complete"):
            assert getattr(pieced.assembler, attribute) == getattr(whole.assembler, attribute)
    pieced.assembler.finish(transfer.crc32c)
    assert pieced.assembler.complete
    assert pieced.made == whole.made


@CODECS
@pytest.mark.parametrize("wire_type", ENCODED)
def test_chunks_larger_than_the_scratch_memory_are_decoded_as_whole_ones(wire_type: WireType, codec: Codec) -> None:
    layout = Layout([parameter("w", 1_000_001), TensorSpec("b", (70_001,), ElementType.FLOAT64, TensorKind.BUFFER)])
    random = np.random.default_rng(3)
    values, rest = random.standard_normal(1_000_001).astype(np.float32), random.standard_normal(70_001).tobytes()
    transfer = Transfer(PayloadFormat(layout, wire_type), values, rest, MAX_CHUNK_BYTES)
    whole, pieced = Sink(transfer, "decoding", codec), Sink(transfer, "decoding", codec)
    for data in transfer.chunks:
        whole.assembler.add(memoryview(data))
        receive(pieced.assembler, data, [100_003, 7, 262_144])
    pieced.assembler.finish(transfer.crc32c)
    assert pieced.made == whole.made


@pytest.mark.parametrize("kind", ["raw", "decoding"])
@pytest.mark.parametrize("wire_type", ENCODED)
@given(pieces=PIECES, torn_at=st.integers(0, 1999))
@settings(deadline=None, max_examples=20)
def test_a_transfer_torn_within_a_chunk_has_what_came_up_to_a_border(
    wire_type: WireType, kind: str, pieces: list[int], torn_at: int
) -> None:
    """`received` and the checksum cover the same bytes, from which a raw transfer continues with other cuts."""
    awkward = awkward_transfer(wire_type)
    transfer = Transfer(awkward.payload, awkward.parameters, awkward.rest, 2000)
    payload, sent = transfer.payload, transfer.bytes
    torn_at = min(torn_at, len(transfer.chunks[0]) - 1)
    into = memoryview(bytearray(payload.byte_count))
    assembler = RawAssembler(payload, into) if kind == "raw" else transfer.decoder()[0]
    assembler.begin(len(transfer.chunks[0]))
    position = 0
    while position < torn_at:
        space = assembler.space
        count = min(len(space), pieces[position % len(pieces)], torn_at - position)
        space[:count] = sent[position : position + count]
        assembler.filled(count)
        position += count
    assert assembler.received == payload.border_at_or_before(torn_at)
    assert assembler.crc32c == crc32c(sent[: assembler.received])
    if kind == "decoding":
        return
    resumed = RawAssembler(payload, into, start=assembler.received, crc32c=assembler.crc32c)
    splitter = Splitter(payload, transfer.parameters, transfer.rest, 777, start=assembler.received)
    for data in splitter:
        receive(resumed, bytes(data), pieces)
    resumed.finish(splitter.crc32c)
    assert bytes(into) == sent


@CODECS
@pytest.mark.parametrize("value", [np.nan, np.inf, -2e30])
@pytest.mark.parametrize("wire_type", [WireType.FLOAT32, WireType.BFLOAT16])
@pytest.mark.parametrize("piece", [1, 7, 60, 5000])
def test_a_bad_value_in_a_piece_is_refused_as_in_a_whole_chunk(
    wire_type: WireType, value: float, codec: Codec, piece: int
) -> None:
    transfer = awkward_transfer(wire_type)
    parameters = transfer.parameters.copy()
    parameters[77] = value
    size = 4 if wire_type is WireType.FLOAT32 else 2
    raw = parameters.view(np.uint8) if size == 4 else (parameters.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    data = raw.tobytes()[: 150 * size]
    whole, pieced = Sink(transfer, "decoding", codec), Sink(transfer, "decoding", codec)
    with pytest.raises(BadValueError, match="parameter 'weight', element 77, is ") as expected:
        whole.assembler.add(memoryview(data))
    with pytest.raises(BadValueError) as raised:
        receive(pieced.assembler, data, [piece])
    assert str(raised.value) == str(expected.value)
    for again in (lambda: pieced.assembler.begin(600), lambda: pieced.assembler.add(memoryview(data))):
        with pytest.raises(ChunkError, match="refused before"):
            again()


@pytest.mark.parametrize("piece", [1, 2, 3, 5000])
@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_bad_value_of_the_rest_in_a_piece_is_refused_as_in_a_whole_chunk(wire_type: WireType, piece: int) -> None:
    """The first buffer has booleans, which follow the PARAMETERs in the same chunk."""
    awkward = awkward_transfer(wire_type)
    transfer = Transfer(awkward.payload, awkward.parameters, awkward.rest, 6000)
    (data,) = transfer.chunks
    boundary = transfer.payload.parameter_bytes
    damaged = data[: boundary + 1] + b"\x02" + data[boundary + 2 :]
    whole, pieced = transfer.decoder()[0], transfer.decoder()[0]
    with pytest.raises(BadValueError, match="buffer 'mask', element 1, is neither 0 nor 1") as expected:
        whole.add(memoryview(damaged))
    with pytest.raises(BadValueError) as raised:
        receive(pieced, damaged, [piece])
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("kind", ["raw", "decoding"])
@pytest.mark.parametrize("wire_type", ENCODED)
@given(count=st.integers(0, 4000))
@settings(deadline=None, max_examples=60)
def test_a_chunk_that_may_not_begin_is_refused_as_a_whole_one(wire_type: WireType, kind: str, count: int) -> None:
    transfer = awkward_transfer(wire_type)
    whole, pieced = transfer.assembler(kind), transfer.assembler(kind)
    first = len(transfer.chunks[0])
    for one in (whole, pieced):
        one.add(memoryview(transfer.chunks[0]))

    def refusal(call: Callable[[], None]) -> str:
        try:
            call()
        except ChunkError as error:
            return str(error)
        except BadValueError:
            pass  # of the bytes, not of the place
        return ""

    data = memoryview(transfer.bytes[first:].ljust(count, b"\0")[:count])
    expected = refusal(lambda: whole.add(data))
    assert refusal(lambda: pieced.begin(count)) == expected
    if expected:
        assert "refused before" in refusal(lambda: pieced.begin(600))
    else:
        assert len(pieced.space) > 0


@pytest.mark.parametrize("wire_type", ENCODED)
def test_damage_in_a_piece_is_found_by_the_footer(wire_type: WireType) -> None:
    """The damage is in buffers of integers, in which every bit is legal."""
    transfer = awkward_transfer(wire_type)
    assembler, _, _ = transfer.decoder()
    steps = transfer.payload.parameter_bytes + 3 + 40
    damaged = bytearray(transfer.bytes)
    damaged[steps] ^= 1
    for data in cut(bytes(damaged), [600]):
        receive(assembler, data, [11])
    with pytest.raises(ChecksumError):
        assembler.finish(transfer.crc32c)


@pytest.mark.parametrize("wire_type", ENCODED)
def test_an_assembler_that_restarts_forgets_everything(wire_type: WireType) -> None:
    """It also forgets why it was refused, and the beginning of an element that it had received."""
    transfer = awkward_transfer(wire_type)
    sink, fresh = Sink(transfer, "decoding", COMPILED), Sink(transfer, "decoding", COMPILED)
    assembler = sink.assembler
    assembler.begin(len(transfer.chunks[0]), memoryview(transfer.bytes)[:3])
    assembler.restart()
    with pytest.raises(ChunkError):
        assembler.begin(0)
    assembler.restart()
    for data in transfer.chunks:
        receive(assembler, data, [5, 13])
        fresh.assembler.add(memoryview(data))
    assembler.finish(transfer.crc32c)
    assert sink.made == fresh.made
    assembler.restart()
    deliver(assembler, transfer)


def test_values_of_float32_are_received_to_where_they_belong() -> None:
    """They are not copied, because the space of a decoding assembler is the memory of the parameters."""
    transfer = awkward_transfer(WireType.FLOAT32)
    assembler, parameters, _ = transfer.decoder()
    assembler.begin(600)
    assert np.shares_memory(np.frombuffer(assembler.space, np.uint8), parameters)


# -- bytes that are encoded already ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_type", ENCODED)
@given(chunk_bytes=st.integers(260, 6000))
@settings(deadline=None, max_examples=20)
def test_encoded_bytes_are_cut_as_a_splitter_cuts(wire_type: WireType, chunk_bytes: int) -> None:
    transfer = awkward_transfer(wire_type)
    expected = Transfer(transfer.payload, transfer.parameters, transfer.rest, chunk_bytes)
    splitter = ScaledSplitter(transfer.payload, chunk_bytes).load(memoryview(transfer.bytes))
    for _ in range(2):  # the second time is a retry
        assert list(map(bytes, splitter)) == expected.chunks
        assert splitter.crc32c == expected.crc32c


@pytest.mark.parametrize("scale", [-1.0, 0.1, 1e-30, 3.0])
@given(chunk_bytes=st.integers(260, 6000))
@settings(deadline=None, max_examples=20)
def test_parameters_are_scaled_on_their_way_and_nothing_else_is(scale: float, chunk_bytes: int) -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    boundary = transfer.payload.parameter_bytes
    expected = (transfer.parameters * np.float32(scale)).tobytes() + transfer.bytes[boundary:]
    splitter = ScaledSplitter(transfer.payload, chunk_bytes).load(memoryview(transfer.bytes), scale)
    for _ in range(2):
        assert b"".join([bytes(data) for data in splitter]) == expected
        assert splitter.crc32c == crc32c(expected)
    assert transfer.bytes[:boundary] == transfer.parameters.tobytes()  # what was loaded is as it was


def test_a_splitter_that_is_loaded_again_forgets_the_scale() -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    splitter = ScaledSplitter(transfer.payload, 700).load(memoryview(transfer.bytes), 7.0)
    for _ in splitter:
        break  # an attempt that was torn
    splitter.load(memoryview(transfer.bytes))
    assert b"".join([bytes(data) for data in splitter]) == transfer.bytes
    assert splitter.crc32c == crc32c(transfer.bytes)


@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_splitter_may_be_used_again(wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 600)
    for _ in range(2):
        assert list(map(bytes, splitter)) == transfer.chunks
        assert splitter.crc32c == transfer.crc32c


def test_chunks_at_odd_addresses_are_taken() -> None:
    # Messages hold chunk data at any offset.
    for wire_type, shift in itertools.product(ENCODED, (1, 2, 3)):
        transfer = awkward_transfer(wire_type)
        assembler, _, rest = transfer.decoder()
        for data in transfer.chunks:
            assembler.add(memoryview(bytes(shift) + data)[shift:])
        assembler.finish(transfer.crc32c)
        assert bytes(rest) == transfer.rest


def test_memory_of_another_size_is_refused() -> None:
    payload = PayloadFormat(awkward_layout(), WireType.FLOAT32)
    right, rest = np.zeros(900, np.float32), memoryview(bytearray(payload.rest_bytes))
    for parameters in (right[:899], right.astype(np.float64), np.zeros((900, 2), np.float32)[:, 0]):
        with pytest.raises(SizeMismatchError, match=r"needs a contiguous float32 array of shape \(900,\)"):
            DecodingAssembler(payload, parameters, rest)  # type: ignore[arg-type]
        with pytest.raises(SizeMismatchError, match=r"needs a contiguous float32 array of shape \(900,\)"):
            Splitter(payload, parameters, rest, 1024)  # type: ignore[arg-type]
    with pytest.raises(SizeMismatchError, match="rest has 93 bytes; this payload needs 94"):
        DecodingAssembler(payload, right, rest[:-1])
    with pytest.raises(SizeMismatchError, match="into has 1 bytes; this payload needs 3694"):
        RawAssembler(payload, memoryview(bytearray(1)))
