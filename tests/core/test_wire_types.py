from __future__ import annotations

import numpy as np
import pytest
from gemps.v1 import transfer_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gem_core import WireType, WireTypeError
from gem_core.wire_types import BLOCKS, decode, encode, encoded_bytes
from tests.core import slow

ENCODED = [one for one in WireType if one is not WireType.SHARED_MEMORY]
LIMIT = float(np.float32(1e30))
vectors = hnp.arrays(np.float32, st.integers(0, 600), elements=st.floats(-LIMIT, LIMIT, width=32))


def decoded(wire_type: WireType, data: memoryview | bytes, count: int) -> np.ndarray:
    out = np.empty(count, np.float32)
    assert decode(wire_type, memoryview(data), out) is None
    return out


def test_numbers_are_those_of_the_proto() -> None:
    assert {f"WIRE_TYPE_{t.name}": int(t) for t in WireType} == {
        name: number for name, number in transfer_pb2.WireType.items() if number
    }


@pytest.mark.parametrize("wire_type", ENCODED)
@given(values=vectors)
@settings(deadline=None)
def test_encoded_size_is_what_encoded_bytes_says(wire_type: WireType, values: np.ndarray) -> None:
    assert encode(wire_type, values).nbytes == encoded_bytes(wire_type, values.size)


@given(values=vectors)
@settings(deadline=None)
def test_float32_arrives_bit_for_bit(values: np.ndarray) -> None:
    arrived = decoded(WireType.FLOAT32, encode(WireType.FLOAT32, values), values.size)
    assert arrived.tobytes() == values.tobytes()


def test_float32_is_encoded_without_a_copy() -> None:
    values = np.arange(10, dtype=np.float32)
    assert np.shares_memory(np.frombuffer(encode(WireType.FLOAT32, values), np.uint8), values)


@given(values=vectors)
@settings(deadline=None)
def test_bfloat16_rounds_half_to_even(values: np.ndarray) -> None:
    bits = np.frombuffer(encode(WireType.BFLOAT16, values), "<u2")
    assert bits.tolist() == [slow.bfloat16_bits(float(value)) for value in values]


def test_bfloat16_decodes_every_finite_pattern_within_the_limit_exactly() -> None:
    bits = np.arange(2**16, dtype=np.uint32)
    values = (bits << 16).view(np.float32)
    legal = np.abs(values) <= LIMIT
    assert decoded(WireType.BFLOAT16, bits[legal].astype("<u2").tobytes(), legal.sum()).tobytes() == (
        values[legal].tobytes()
    )


@given(values=vectors)
@settings(deadline=None)
def test_int4_blocks_are_within_half_a_scale(values: np.ndarray) -> None:
    arrived = decoded(WireType.INT4_BLOCK, encode(WireType.INT4_BLOCK, values), values.size).astype(np.float64)
    for start in range(0, values.size, 256):
        block = values[start : start + 256].astype(np.float64)
        largest = np.abs(block).max()
        # Half a step, the float32 rounding of q * scale, and blocks of denormals that fit into no scale.
        tolerance = largest / 7 * 0.5001 + 7 * 2.0**-149
        assert np.abs(arrived[start : start + 256] - block).max() <= tolerance


@pytest.mark.parametrize("wire_type", ENCODED)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 3e38])
def test_values_that_are_not_finite_are_found_after_any_encoding(wire_type: WireType, bad: float) -> None:
    values = np.linspace(-1, 1, 700, dtype=np.float32)
    values[600] = bad
    problem = decode(wire_type, encode(wire_type, values), np.empty(700, np.float32))
    assert problem is not None
    # Blocks blame the first element of the block, whose scale it is.
    assert problem.position == (512 if wire_type in BLOCKS else 600)


def test_a_nan_of_all_ones_does_not_become_a_number_in_bfloat16() -> None:
    values = np.array([0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    for i in range(3):
        assert decode(WireType.BFLOAT16, encode(WireType.BFLOAT16, values[i : i + 1]), np.empty(1, np.float32))


@pytest.mark.parametrize("value", [1.0001e30, -1.0001e30, np.inf, np.nan])
def test_float32_beyond_the_limit_is_found_and_said(value: float) -> None:
    values = np.zeros(10, np.float32)
    values[[3, 7]] = value
    problem = decode(WireType.FLOAT32, encode(WireType.FLOAT32, values), np.empty(10, np.float32))
    assert problem is not None
    assert problem.position == 3
    assert ("beyond the limit of 1e30" in problem.problem) == bool(np.isfinite(value))


def test_the_limit_itself_passes() -> None:
    values = np.array([1e30, -1e30], np.float32)
    assert decoded(WireType.FLOAT32, encode(WireType.FLOAT32, values), 2).tolist() == values.tolist()


@pytest.mark.parametrize("position", [0, 255, 256, 299])
def test_minus_8_is_found(position: int) -> None:
    data = np.frombuffer(encode(WireType.INT4_BLOCK, np.ones(300, np.float32)), np.uint8).copy()
    block, element = divmod(position, 256)
    data[132 * block + 4 + element // 2] = 0x80 if element % 2 else 0x08
    problem = decode(WireType.INT4_BLOCK, data.data, np.empty(300, np.float32))
    assert problem is not None
    assert problem.position == position
    assert "-8" in problem.problem


@pytest.mark.parametrize(
    ("wire_type", "offset", "byte", "position", "problem"),
    [
        (WireType.INT4_BLOCK, 4 + 1, 0x08, 2, "is -8"),
        (WireType.INT4_BLOCK, 132 + 4 + 21, 0x10, 298, "is followed by a number that is not 0"),
        (WireType.SPARSE_BLOCK, 68 + 4 + 10, 0x07, 296, "without element 3"),  # the last group has three
        (WireType.SPARSE_BLOCK, 68 + 4 + 2, 0x81, 265, "is -32"),
    ],
)
def test_illegal_bytes_of_coarse_blocks_are_found(
    wire_type: WireType, offset: int, byte: int, position: int, problem: str
) -> None:
    data = np.frombuffer(encode(wire_type, np.zeros(299, np.float32)), np.uint8).copy()
    data[offset] = byte
    found = decode(wire_type, data.data, np.empty(299, np.float32))
    assert found is not None
    assert found.position == position
    assert problem in found.problem


@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf, -np.inf, 1.1e30])
@pytest.mark.parametrize("block", [0, 1])
def test_illegal_scales_are_found(scale: float, block: int) -> None:
    data = np.frombuffer(encode(WireType.INT4_BLOCK, np.zeros(300, np.float32)), np.uint8).copy()
    data[block * 132 : block * 132 + 4] = np.array([scale], np.float32).view(np.uint8)
    problem = decode(WireType.INT4_BLOCK, data.data, np.empty(300, np.float32))
    assert problem is not None
    assert problem.position == block * 256
    assert "scale" in problem.problem


def test_a_block_of_negative_zeros_has_a_scale_that_is_not_negative() -> None:
    for values in ([-0.0], [0.0, -0.0], [-0.0, 0.0]):
        encoded = encode(WireType.INT4_BLOCK, np.array(values, np.float32))
        assert bytes(encoded) == bytes(4 + 1)


def test_products_beyond_the_limit_are_found() -> None:
    data = np.frombuffer(encode(WireType.INT4_BLOCK, np.ones(3, np.float32)), np.uint8).copy()
    data[:4] = np.array([9e29], np.float32).view(np.uint8)
    data[4:] = [0x10, 0x02]  # 0, 1, 2
    problem = decode(WireType.INT4_BLOCK, data.data, np.empty(3, np.float32))
    assert problem is not None
    assert problem.position == 2


@pytest.mark.parametrize("wire_type", ENCODED)
def test_bytes_at_an_odd_address_are_decoded(wire_type: WireType) -> None:
    values = np.linspace(-3, 3, 333, dtype=np.float32)
    encoded = bytes(encode(wire_type, values))
    shifted = memoryview(b"x" + encoded)[1:]
    assert decoded(wire_type, shifted, 333).tobytes() == decoded(wire_type, encoded, 333).tobytes()


def test_shared_memory_has_no_encoding() -> None:
    with pytest.raises(WireTypeError, match="choose one of FLOAT32, BFLOAT16"):
        encoded_bytes(WireType.SHARED_MEMORY, 3)
    with pytest.raises(WireTypeError):
        encode(WireType.SHARED_MEMORY, np.zeros(1, np.float32))
    with pytest.raises(WireTypeError):
        decode(WireType.SHARED_MEMORY, memoryview(b"0000"), np.zeros(1, np.float32))
