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
    for offset, data in transfer.chunks:
        assert not assembler.complete
        assembler.add(offset, memoryview(data))
    assembler.finish(*transfer.footer)
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
    assert other.footer[2] == transfer.footer[2] == crc32c(transfer.bytes)
    assert other.footer[1] == len(other.chunks)
    assert all(1 <= len(data) <= chunk_bytes for _, data in other.chunks)


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
        for offset, data in transfer.chunks[:survived]:
            torn.add(offset, memoryview(data))
        # Another chunk size, so that the rest is cut elsewhere than before.
        splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 777, start=torn.received)
        resumed = RawAssembler(transfer.payload, into, start=torn.received, crc32c=torn.crc32c)
        for offset, data in splitter:
            resumed.add(offset, data)
        resumed.finish(transfer.payload.byte_count, splitter.chunk_count, splitter.crc32c)
        assert bytes(into) == transfer.bytes
        assert splitter.crc32c == transfer.footer[2]


def test_float32_chunks_are_views_of_the_parameters() -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 600)
    boundary = transfer.payload.parameter_bytes
    for offset, data in splitter:
        inside = offset + data.nbytes <= boundary
        assert np.shares_memory(np.frombuffer(data, np.uint8), transfer.parameters) == inside


def test_encoded_chunks_stay_valid_after_the_next_one() -> None:
    transfer = awkward_transfer(WireType.INT4_BLOCK)
    held = list(Splitter(transfer.payload, transfer.parameters, transfer.rest, 600))
    assert b"".join(data for _, data in held) == transfer.bytes


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
    """An assembler, raw or decoding, and what it has made."""

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


def receive(assembler: Assembler, offset: int, data: bytes, pieces: list[int], beforehand: int = 0) -> None:
    """A chunk as a transport receives it: some of it came elsewhere, the rest comes as the network likes."""
    assembler.begin(offset, len(data), memoryview(data)[:beforehand])
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
    for offset, data in transfer.chunks:
        whole.assembler.add(offset, memoryview(data))
        receive(pieced.assembler, offset, data, pieces, beforehand)
        for attribute in ("received", "chunk_count", "crc32c", "complete"):
            assert getattr(pieced.assembler, attribute) == getattr(whole.assembler, attribute)
    pieced.assembler.finish(*transfer.footer)
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
    for offset, data in transfer.chunks:
        whole.assembler.add(offset, memoryview(data))
        receive(pieced.assembler, offset, data, [100_003, 7, 262_144])
    pieced.assembler.finish(*transfer.footer)
    assert pieced.made == whole.made


@pytest.mark.parametrize("kind", ["raw", "decoding"])
@pytest.mark.parametrize("wire_type", ENCODED)
@given(pieces=PIECES, torn_at=st.integers(0, 1999))
@settings(deadline=None, max_examples=20)
def test_a_transfer_torn_within_a_chunk_has_what_came_up_to_a_border(
    wire_type: WireType, kind: str, pieces: list[int], torn_at: int
) -> None:
    """`received` and the checksum are of the same bytes; a raw transfer goes on there, cut otherwise."""
    awkward = awkward_transfer(wire_type)
    transfer = Transfer(awkward.payload, awkward.parameters, awkward.rest, 2000)
    payload, sent = transfer.payload, transfer.bytes
    torn_at = min(torn_at, len(transfer.chunks[0][1]) - 1)
    into = memoryview(bytearray(payload.byte_count))
    assembler = RawAssembler(payload, into) if kind == "raw" else transfer.decoder()[0]
    assembler.begin(0, len(transfer.chunks[0][1]))
    position = 0
    while position < torn_at:
        space = assembler.space
        count = min(len(space), pieces[position % len(pieces)], torn_at - position)
        space[:count] = sent[position : position + count]
        assembler.filled(count)
        position += count
    assert assembler.received == payload.border_at_or_before(torn_at)
    assert assembler.crc32c == crc32c(sent[: assembler.received])
    assert assembler.chunk_count == 0
    if kind == "decoding":
        return
    resumed = RawAssembler(payload, into, start=assembler.received, crc32c=assembler.crc32c)
    splitter = Splitter(payload, transfer.parameters, transfer.rest, 777, start=assembler.received)
    for offset, data in splitter:
        receive(resumed, offset, bytes(data), pieces)
    resumed.finish(payload.byte_count, splitter.chunk_count, splitter.crc32c)
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
        whole.assembler.add(0, memoryview(data))
    with pytest.raises(BadValueError) as raised:
        receive(pieced.assembler, 0, data, [piece])
    assert str(raised.value) == str(expected.value)
    for again in (lambda: pieced.assembler.begin(0, 600), lambda: pieced.assembler.add(0, memoryview(data))):
        with pytest.raises(ChunkError, match="refused before"):
            again()


@pytest.mark.parametrize("piece", [1, 2, 3, 5000])
@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_bad_value_of_the_rest_in_a_piece_is_refused_as_in_a_whole_chunk(wire_type: WireType, piece: int) -> None:
    """The first buffer: booleans, behind an odd number of bytes in no wire type but in a chunk with PARAMETERs."""
    awkward = awkward_transfer(wire_type)
    transfer = Transfer(awkward.payload, awkward.parameters, awkward.rest, 6000)
    ((_, data),) = transfer.chunks
    boundary = transfer.payload.parameter_bytes
    damaged = data[: boundary + 1] + b"\x02" + data[boundary + 2 :]
    whole, pieced = transfer.decoder()[0], transfer.decoder()[0]
    with pytest.raises(BadValueError, match="buffer 'mask', element 1, is neither 0 nor 1") as expected:
        whole.add(0, memoryview(damaged))
    with pytest.raises(BadValueError) as raised:
        receive(pieced, 0, damaged, [piece])
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("kind", ["raw", "decoding"])
@pytest.mark.parametrize("wire_type", ENCODED)
@given(offset=st.integers(0, 1300), count=st.integers(0, 4000))
@settings(deadline=None, max_examples=60)
def test_a_chunk_that_may_not_begin_is_refused_as_a_whole_one(
    wire_type: WireType, kind: str, offset: int, count: int
) -> None:
    transfer = awkward_transfer(wire_type)
    whole, pieced = transfer.assembler(kind), transfer.assembler(kind)
    first = len(transfer.chunks[0][1])
    for one in (whole, pieced):
        one.add(0, memoryview(transfer.chunks[0][1]))
    offset = first if offset % 2 else offset

    def refusal(call: Callable[[], None]) -> str:
        try:
            call()
        except ChunkError as error:
            return str(error)
        except BadValueError:
            pass  # of the bytes, not of the place
        return ""

    data = memoryview(transfer.bytes[first:].ljust(count, b"\0")[:count])
    expected = refusal(lambda: whole.add(offset, data))
    assert refusal(lambda: pieced.begin(offset, count)) == expected
    if expected:
        assert "refused before" in refusal(lambda: pieced.begin(first, 600))
    else:
        assert len(pieced.space) > 0


@pytest.mark.parametrize("wire_type", ENCODED)
def test_damage_in_a_piece_is_found_by_the_footer(wire_type: WireType) -> None:
    """Of buffers of integers, in which every bit is legal."""
    transfer = awkward_transfer(wire_type)
    assembler, _, _ = transfer.decoder()
    steps = transfer.payload.parameter_bytes + 3 + 40
    damaged = bytearray(transfer.bytes)
    damaged[steps] ^= 1
    for offset, data in transfer.chunks:
        receive(assembler, offset, bytes(damaged[offset : offset + len(data)]), [11])
    with pytest.raises(ChecksumError):
        assembler.finish(*transfer.footer)


@pytest.mark.parametrize("wire_type", ENCODED)
def test_an_assembler_that_restarts_forgets_everything(wire_type: WireType) -> None:
    """Also what it was refused for, and the beginning of an element that had come."""
    transfer = awkward_transfer(wire_type)
    sink, fresh = Sink(transfer, "decoding", COMPILED), Sink(transfer, "decoding", COMPILED)
    assembler = sink.assembler
    assembler.begin(0, len(transfer.chunks[0][1]), memoryview(transfer.bytes)[:3])
    assembler.restart()
    with pytest.raises(ChunkError):
        assembler.begin(4, 4)
    assembler.restart()
    for offset, data in transfer.chunks:
        receive(assembler, offset, data, [5, 13])
        fresh.assembler.add(offset, memoryview(data))
    assembler.finish(*transfer.footer)
    assert sink.made == fresh.made
    assembler.restart()
    deliver(assembler, transfer)


def test_values_of_float32_are_received_to_where_they_belong() -> None:
    """Nothing is copied: the space of a decoding assembler is the parameters' own memory."""
    transfer = awkward_transfer(WireType.FLOAT32)
    assembler, parameters, _ = transfer.decoder()
    assembler.begin(0, 600)
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
        assert [(offset, bytes(data)) for offset, data in splitter] == expected.chunks
        assert (splitter.payload.byte_count, splitter.chunk_count, splitter.crc32c) == expected.footer


@pytest.mark.parametrize("scale", [-1.0, 0.1, 1e-30, 3.0])
@given(chunk_bytes=st.integers(260, 6000))
@settings(deadline=None, max_examples=20)
def test_parameters_are_scaled_on_their_way_and_nothing_else_is(scale: float, chunk_bytes: int) -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    boundary = transfer.payload.parameter_bytes
    expected = (transfer.parameters * np.float32(scale)).tobytes() + transfer.bytes[boundary:]
    splitter = ScaledSplitter(transfer.payload, chunk_bytes).load(memoryview(transfer.bytes), scale)
    for _ in range(2):
        assert b"".join(bytes(data) for _, data in splitter) == expected
        assert splitter.crc32c == crc32c(expected)
    assert transfer.bytes[:boundary] == transfer.parameters.tobytes()  # what was loaded is as it was


def test_a_splitter_that_is_loaded_again_forgets_the_scale() -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    splitter = ScaledSplitter(transfer.payload, 700).load(memoryview(transfer.bytes), 7.0)
    for _ in splitter:
        break  # an attempt that was torn
    splitter.load(memoryview(transfer.bytes))
    assert b"".join(bytes(data) for _, data in splitter) == transfer.bytes
    assert splitter.crc32c == crc32c(transfer.bytes)


@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_splitter_may_be_used_again(wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    splitter = Splitter(transfer.payload, transfer.parameters, transfer.rest, 600)
    for _ in range(2):
        assert [(offset, bytes(data)) for offset, data in splitter] == transfer.chunks
        assert (splitter.chunk_count, splitter.crc32c) == transfer.footer[1:]


def test_chunks_at_odd_addresses_are_taken() -> None:
    # Messages hold chunk data at any offset.
    for wire_type, shift in itertools.product(ENCODED, (1, 2, 3)):
        transfer = awkward_transfer(wire_type)
        assembler, _, rest = transfer.decoder()
        for offset, data in transfer.chunks:
            assembler.add(offset, memoryview(bytes(shift) + data)[shift:])
        assembler.finish(*transfer.footer)
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
