"""Payloads of one chunk, taken in one go, are judged as by the assembler of chunks, and are the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from gem_core import (
    BadValueError,
    ChecksumError,
    ChunkError,
    CoreError,
    ElementType,
    Layout,
    PayloadFormat,
    SizeMismatchError,
    TensorKind,
    TensorSpec,
    WireType,
    crc32c,
)
from gem_core.chunking import decode_whole, encode_whole
from gem_core.payload import MAX_CHUNK_BYTES
from gem_core.wire_kernels import COMPILED
from gem_core.wire_types import NUMPY, Codec
from tests.core.transfers import ENCODED, Transfer, awkward_transfer

CODECS = pytest.mark.parametrize("codec", [NUMPY, COMPILED], ids=["numpy", "compiled"])
WIRE_TYPES = pytest.mark.parametrize("wire_type", ENCODED)


def transfers(wire_type: WireType) -> list[Transfer]:
    """With and without a rest, each in one chunk."""
    plain = Layout([TensorSpec("w", (777,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    values = np.linspace(-1, 1, 777, dtype=np.float32)
    awkward = awkward_transfer(wire_type)
    return [
        Transfer(awkward.payload, awkward.parameters, awkward.rest, MAX_CHUNK_BYTES),
        Transfer(PayloadFormat(plain, wire_type), values, b"", MAX_CHUNK_BYTES),
    ]


def taken(
    transfer: Transfer, data: bytes, footer: tuple[int, int, int], codec: Codec
) -> tuple[NDArray[np.float32], bytes]:
    _, parameters, rest = transfer.decoder()
    decode_whole(transfer.payload, memoryview(data), footer, parameters, memoryview(rest), codec)
    return parameters, bytes(rest)


@CODECS
@WIRE_TYPES
def test_it_is_the_one_chunk_that_a_splitter_makes(wire_type: WireType, codec: Codec) -> None:
    for transfer in transfers(wire_type):
        data, checksum = encode_whole(transfer.payload, transfer.parameters, transfer.rest, codec)
        assert [(0, bytes(data))] == transfer.chunks
        assert (len(data), 1, checksum) == transfer.footer


@CODECS
@WIRE_TYPES
def test_what_is_encoded_whole_is_decoded_whole(wire_type: WireType, codec: Codec) -> None:
    for transfer in transfers(wire_type):
        parameters, rest = taken(transfer, transfer.bytes, transfer.footer, codec)
        assembler, expected, expected_rest = transfer.decoder()
        assembler.add(0, memoryview(transfer.bytes))
        assembler.finish(*transfer.footer)
        assert parameters.tobytes() == expected.tobytes()
        assert rest == bytes(expected_rest)


def in_chunks(transfer: Transfer, data: bytes, footer: tuple[int, int, int]) -> None:
    assembler, _, _ = transfer.decoder()
    assembler.add(0, memoryview(data))
    assembler.finish(*footer)


Damage = Callable[[bytes, tuple[int, int, int]], tuple[bytes, tuple[int, int, int]]]


@CODECS
@WIRE_TYPES
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data, footer: (b"", footer), ChunkError),
        (lambda data, footer: (data[:-1], footer), CoreError),  # as its format wants it
        (lambda data, footer: (data + bytes(4), footer), ChunkError),
        (lambda data, footer: (data, (footer[0] - 4, 1, footer[2])), SizeMismatchError),
        (lambda data, footer: (data, (footer[0], 2, footer[2])), SizeMismatchError),
        (lambda data, footer: (data, (footer[0], 0, footer[2])), SizeMismatchError),
        (lambda data, footer: (data, (footer[0], 1, footer[2] ^ 1)), ChecksumError),
        (lambda data, footer: (bytes([data[0] ^ 1]) + data[1:], footer), ChecksumError),
    ],
    ids=["nothing", "short", "long", "bytes", "two chunks", "no chunk", "checksum", "one bit"],
)
def test_what_is_wrong_is_told_as_of_chunks(
    wire_type: WireType, damage: Damage, error: type[CoreError], codec: Codec
) -> None:
    for transfer in transfers(wire_type):
        data, footer = damage(transfer.bytes, transfer.footer)
        with pytest.raises(error) as expected:
            in_chunks(transfer, data, footer)
        with pytest.raises(error) as found:
            taken(transfer, data, footer, codec)
        assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))


@CODECS
@pytest.mark.parametrize("value", [np.nan, np.inf, 2e30])
def test_bad_values_are_refused_with_their_place(value: float, codec: Codec) -> None:
    for transfer in transfers(WireType.FLOAT32):
        data = bytearray(transfer.bytes)
        data[4 * 700 : 4 * 701] = np.float32(value).tobytes()
        footer = (len(data), 1, crc32c(data))
        with pytest.raises(BadValueError, match=r"element \d+, is "):
            taken(transfer, bytes(data), footer, codec)


def test_values_of_another_size_are_not_encoded() -> None:
    transfer = transfers(WireType.FLOAT32)[1]
    with pytest.raises(SizeMismatchError, match="776 parameters, and 0 bytes behind them, make 3104 bytes"):
        encode_whole(transfer.payload, transfer.parameters[1:], b"")
    into = np.zeros(776, np.float32)
    with pytest.raises(SizeMismatchError, match="the layout needs a contiguous float32 array"):
        decode_whole(transfer.payload, memoryview(transfer.bytes), transfer.footer, into, memoryview(b""))


def test_float32_is_encoded_where_it_lies() -> None:
    transfer = transfers(WireType.FLOAT32)[1]
    data, _ = encode_whole(transfer.payload, transfer.parameters, b"")
    assert np.shares_memory(np.frombuffer(data, np.uint8), transfer.parameters)
