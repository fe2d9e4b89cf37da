"""Every way in which a transfer can be wrong is refused, by both assemblers, and nothing is accepted afterwards."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gem_core import (
    BadValueError,
    ChecksumError,
    ChunkError,
    CoreError,
    PayloadFormat,
    RawAssembler,
    SizeMismatchError,
    WireType,
)
from gem_core.chunking import Assembler
from gem_core.chunking.assemble import first_non_finite
from gem_core.layout import ElementType, TensorKind, TensorSpec
from gem_core.payload import MAX_CHUNK_BYTES
from tests.core.transfers import ENCODED, Transfer, awkward_transfer, deliver

BOTH = pytest.mark.parametrize("kind", ["raw", "decoding"])


def feed(assembler: Assembler, transfer: Transfer, chunks: int | None = None) -> None:
    for data in transfer.chunks[:chunks]:
        assembler.add(memoryview(data))


def refuses_everything(assembler: Assembler, transfer: Transfer) -> bool:
    """Whether what would be right now is refused, and changes nothing."""
    before = (assembler.received, assembler.crc32c)
    with pytest.raises(ChunkError, match="start a new one"):
        assembler.add(memoryview(transfer.bytes)[assembler.received :])
    with pytest.raises(ChunkError, match="start a new one"):
        assembler.finish(transfer.crc32c)
    return before == (assembler.received, assembler.crc32c)


@BOTH
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a chunk of 0 bytes; chunks must have 1 to 2097152"),
        (bytes(MAX_CHUNK_BYTES + 4), "a chunk of 2097156 bytes"),
        (bytes(4000), "a chunk that ends at 5200; it must end at or before 3694"),
        (bytes(2495), "a chunk that ends at 3695; it must end at or before 3694"),
    ],
    ids=["empty", "too large", "beyond the end", "a byte beyond the end"],
)
def test_a_chunk_of_the_wrong_size_is_refused(kind: str, data: bytes, message: str) -> None:
    transfer = awkward_transfer(WireType.FLOAT32)
    assembler = transfer.assembler(kind)
    feed(assembler, transfer, 2)
    with pytest.raises(ChunkError, match=message):
        assembler.add(memoryview(data))
    assert refuses_everything(assembler, transfer)


@BOTH
def test_a_chunk_after_the_last_one_is_refused(kind: str) -> None:
    transfer = awkward_transfer()
    assembler = transfer.assembler(kind)
    feed(assembler, transfer)
    with pytest.raises(ChunkError, match="it must end at or before 3694"):
        assembler.add(memoryview(b"1234"))
    assert refuses_everything(assembler, transfer)


@BOTH
@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_footer_before_the_last_chunk_is_refused(kind: str, wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    for missing in range(1, len(transfer.chunks) + 1):
        assembler = transfer.assembler(kind)
        feed(assembler, transfer, -missing)
        with pytest.raises(SizeMismatchError, match=f"after {assembler.received} of .*: send all chunks first"):
            assembler.finish(transfer.crc32c)
        assert not assembler.complete
        assert refuses_everything(assembler, transfer)


@BOTH
def test_a_footer_with_another_checksum_is_refused(kind: str) -> None:
    transfer = awkward_transfer()
    assembler = transfer.assembler(kind)
    feed(assembler, transfer)
    with pytest.raises(ChecksumError, match="damaged on its way; send it again"):
        assembler.finish(transfer.crc32c ^ 1)
    assert not assembler.complete
    assert refuses_everything(assembler, transfer)


@BOTH
@pytest.mark.parametrize("wire_type", ENCODED)
def test_any_damaged_byte_is_refused_by_the_end(kind: str, wire_type: WireType) -> None:
    transfer = awkward_transfer(wire_type)
    for place in range(0, transfer.payload.byte_count, 13):
        assembler = transfer.assembler(kind)
        damaged = bytearray(transfer.bytes)
        damaged[place] ^= 0x10
        with pytest.raises((ChecksumError, BadValueError)):
            deliver(assembler, transfer, damaged)
        assert not assembler.complete


@BOTH
def test_a_second_footer_is_refused(kind: str) -> None:
    transfer = awkward_transfer()
    assembler = transfer.assembler(kind)
    deliver(assembler, transfer)
    with pytest.raises(ChunkError, match="this transfer is complete: start a new one"):
        assembler.finish(transfer.crc32c)
    with pytest.raises(ChunkError, match="this transfer is complete: start a new one"):
        assembler.add(memoryview(b"1234"))
    assert assembler.complete


def test_the_first_refusal_is_repeated_in_the_later_ones() -> None:
    transfer = awkward_transfer()
    assembler = transfer.assembler("raw")
    with pytest.raises(ChunkError):
        assembler.add(memoryview(bytes(4000)))
    with pytest.raises(ChunkError, match=r"refused before .*it must end at or before 3694"):
        assembler.add(memoryview(b"1234"))


def test_going_on_within_an_element_is_refused() -> None:
    transfer = awkward_transfer()
    with pytest.raises(ChunkError, match="cannot continue at offset 6"):
        RawAssembler(transfer.payload, memoryview(bytearray(transfer.payload.byte_count)), start=6)


def test_going_on_with_the_wrong_checksum_is_refused_at_the_end() -> None:
    transfer = awkward_transfer()
    first = len(transfer.chunks[0])
    into = memoryview(bytearray(transfer.payload.byte_count))
    assembler = RawAssembler(transfer.payload, into, start=first, crc32c=12345)
    for data in transfer.chunks[1:]:
        assembler.add(memoryview(data))
    with pytest.raises(ChecksumError):
        assembler.finish(transfer.crc32c)


def with_bytes(transfer: Transfer, offset: int, new: bytes) -> CoreError:
    """The error of a decoding assembler when `new` lies at `offset` of the payload."""
    damaged = bytearray(transfer.bytes)
    damaged[offset : offset + len(new)] = new
    assembler, _, _ = transfer.decoder()
    with pytest.raises(BadValueError) as caught:
        deliver(assembler, transfer, damaged)
    assert not assembler.complete
    assert refuses_everything(assembler, transfer)
    return caught.value


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e30, -3e38])
@pytest.mark.parametrize(
    ("index", "name", "element"), [(0, "weight", 0), (799, "weight", 799), (800, "scale", 0), (899, "bias", 98)]
)
def test_bad_parameters_are_refused_with_tensor_and_element(value: float, index: int, name: str, element: int) -> None:
    error = with_bytes(awkward_transfer(WireType.FLOAT32), 4 * index, struct.pack("<f", value))
    assert f"parameter '{name}', element {element}, is {value:g}" in str(error)
    assert "skip steps whose values are not finite" in str(error)


@pytest.mark.parametrize(
    ("wire_type", "offset", "new", "message"),
    [
        (WireType.BFLOAT16, 2 * 3, b"\xc0\x7f", "'weight', element 3, is nan"),
        (WireType.BFLOAT16, 2 * 801, b"\x80\xff", "'bias', element 0, is -inf"),
        (WireType.BFLOAT16, 2 * 3, b"\x7f\x7f", "'weight', element 3, is 3.38953e+38, beyond the limit of 1e30"),
        (WireType.INT4_BLOCK, 4, b"\x08", "'weight', element 0, is -8, which INT4_BLOCK does not use"),
        (WireType.INT4_BLOCK, 3 * 132 + 4 + 65, b"\x80", "'bias', element 98, is -8"),
        (WireType.INT4_BLOCK, 132, struct.pack("<f", -1), "'weight', element 256, starts a block whose scale -1.0"),
        (
            WireType.INT4_BLOCK,
            3 * 132,
            struct.pack("<f", np.inf),
            "'weight', element 768, starts a block whose scale inf",
        ),
    ],
)
def test_bad_encoded_parameters_are_refused(wire_type: WireType, offset: int, new: bytes, message: str) -> None:
    assert message in str(with_bytes(awkward_transfer(wire_type), offset, new))


@pytest.mark.parametrize("wire_type", ENCODED)
@pytest.mark.parametrize(
    ("offset", "new", "message"),
    [
        (0, b"\x02", "buffer 'mask', element 0, is neither 0 nor 1"),
        (2, b"\xff", "buffer 'mask', element 2, is neither 0 nor 1"),
    ],
)
def test_bad_buffers_are_refused(wire_type: WireType, offset: int, new: bytes, message: str) -> None:
    transfer = awkward_transfer(wire_type)
    assert message in str(with_bytes(transfer, transfer.payload.parameter_bytes + offset, new))


@pytest.mark.parametrize("wire_type", ENCODED)
@pytest.mark.parametrize(
    ("offset", "new"),
    [
        (3, struct.pack("<f", np.nan)),
        (3 + 36, struct.pack("<f", np.inf)),
        (53, b"\x80\xff"),
        (58, struct.pack("<d", -np.inf)),
        (92, b"\x00\x7c"),
    ],
)
def test_buffers_that_are_not_finite_arrive_and_are_noticed(wire_type: WireType, offset: int, new: bytes) -> None:
    transfer = awkward_transfer(wire_type)
    rest = bytearray(transfer.rest)
    rest[offset : offset + len(new)] = new
    other = Transfer(transfer.payload, transfer.parameters, bytes(rest))
    assembler, _, arrived = other.decoder()
    for sent, is_finite in ((transfer, True), (other, False), (transfer, True)):
        deliver(assembler, sent)
        assert (arrived == sent.rest, assembler.is_rest_finite) == (True, is_finite)
        assembler.restart()


def test_the_first_value_that_is_not_finite_is_named() -> None:
    mean = TensorSpec("mean", (3,), ElementType.BFLOAT16, TensorKind.BUFFER)
    count = TensorSpec("count", (3,), ElementType.INT16, TensorKind.BUFFER)
    values = np.frombuffer(b"\x80\x3f\x80\xff\xc0\x7f", np.uint8)
    assert "buffer 'mean', element 1, is not finite" in str(first_non_finite(mean, values))
    assert first_non_finite(count, values) is None
    assert first_non_finite(mean, values[[0, 1, 0, 1, 0, 1]]) is None


def test_buffers_may_be_larger_than_the_limit_of_parameters() -> None:
    transfer = awkward_transfer()
    rest = bytearray(transfer.rest)
    rest[3:7] = struct.pack("<f", 3e38)
    other = Transfer(PayloadFormat(transfer.payload.layout, WireType.FLOAT32), transfer.parameters, bytes(rest))
    assembler, _, _ = other.decoder()
    deliver(assembler, other)
    assert assembler.complete
