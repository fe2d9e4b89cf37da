from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import (
    BadValueError,
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
from gem_core.wire_kernels import COMPILED
from gem_core.wire_types import NUMPY, Codec, decode, encode
from tests.core.transfers import ENCODED, Transfer, awkward_layout, awkward_transfer, deliver


@pytest.mark.parametrize("with_constants", [False, True])
@pytest.mark.parametrize("wire_type", ENCODED)
def test_what_is_split_is_assembled_again(wire_type: WireType, with_constants: bool) -> None:
    transfer = awkward_transfer(wire_type, with_constants)
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
    transfer = awkward_transfer(WireType.INT8_BLOCK)
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
        Layout([TensorSpec("frozen", (3,), ElementType.BOOL, TensorKind.CONSTANT)]),
        Layout([TensorSpec("mean", (3,), ElementType.FLOAT32, TensorKind.BUFFER)]),
    ],
    ids=["no tensors", "0 elements", "scalar", "1 block", "1 block and 1", "border in tensors", "constants", "buffers"],
)
@pytest.mark.parametrize("with_constants", [False, True])
def test_unusual_layouts_travel(layout: Layout, wire_type: WireType, with_constants: bool) -> None:
    payload = PayloadFormat(layout, wire_type, with_constants)
    values = np.linspace(-1, 1, layout.parameter_count, dtype=np.float32)
    transfer = Transfer(payload, values, bytes(payload.rest_bytes), chunk_bytes=260)
    assembler, parameters, _ = transfer.decoder()
    deliver(assembler, transfer)
    np.testing.assert_allclose(parameters, values, atol=0.005)


@pytest.mark.parametrize("codec", [NUMPY, COMPILED], ids=["numpy", "compiled"])
@pytest.mark.parametrize("kind", ["raw", "decoding"])
def test_chunks_may_be_received_to_their_places(kind: str, codec: Codec) -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    into = np.zeros(transfer.payload.byte_count, np.uint8)
    parameters, rest = np.zeros(900, np.float32), bytearray(transfer.payload.rest_bytes)
    assembler: RawAssembler | DecodingAssembler = RawAssembler(transfer.payload, into.data)
    if kind == "decoding":
        assembler = DecodingAssembler(transfer.payload, parameters, memoryview(rest), codec)
    placed = 0
    for offset, data in transfer.chunks:
        assert assembler.place(offset + 4, len(data)) is None  # not the next one
        place = assembler.place(offset, len(data))
        if place is None:
            assembler.add(offset, memoryview(data))
        else:
            placed += 1
            place[:] = data
            assembler.add_placed(offset, len(data))
    assembler.finish(*transfer.footer)
    assert placed == (len(transfer.chunks) if kind == "raw" else 3600 // 600)
    assert transfer.bytes == (into.tobytes() if kind == "raw" else parameters.tobytes() + bytes(rest))


@pytest.mark.parametrize("wire_type", [one for one in ENCODED if one is not WireType.FLOAT32])
def test_what_has_to_be_decoded_has_no_place(wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    assembler, _, _ = transfer.decoder()
    assert assembler.place(0, 520) is None
    with pytest.raises(ChunkError, match="a chunk of 520 bytes at offset 0 has no place"):
        assembler.add_placed(0, 520)


@pytest.mark.parametrize("codec", [NUMPY, COMPILED], ids=["numpy", "compiled"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -2e30])
def test_bad_values_at_their_places_are_refused(value: float, codec: Codec) -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    parameters, rest = np.zeros(900, np.float32), memoryview(bytearray(transfer.payload.rest_bytes))
    assembler = DecodingAssembler(transfer.payload, parameters, rest, codec)
    place = assembler.place(0, 600)
    assert place is not None
    place[:] = transfer.bytes[:600]
    parameters[77] = value
    with pytest.raises(BadValueError, match="parameter 'weight', element 77, is "):
        assembler.add_placed(0, 600)
    with pytest.raises(ChunkError, match="refused before"):
        assembler.add(0, memoryview(transfer.bytes[:600]))


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
    with pytest.raises(SizeMismatchError, match="rest has 56 bytes; this payload needs 57"):
        DecodingAssembler(payload, right, rest[:-1])
    with pytest.raises(SizeMismatchError, match="into has 1 bytes; this payload needs 3657"):
        RawAssembler(payload, memoryview(bytearray(1)))
