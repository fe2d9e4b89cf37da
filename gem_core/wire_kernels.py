"""Numba version of wire_types.py, with equal results.

Arrays are contiguous vectors and outputs are writable; others raise TypeError. Lengths are unchecked, as is the
alignment of outputs. Workers must not import this module.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from gem_core import wire_types
from gem_core.compilation import arithmetic, driver
from gem_core.wire_blocks import SPARSE_GROUP
from gem_core.wire_types import BLOCK_ELEMENTS, BLOCKS, LARGEST_VALUE, BadElement, Codec, WireType, encoded_bytes

__all__ = ["COMPILED", "warm_up"]

# Inputs may be unaligned views into a message.
_BYTES = types.Array(types.uint8, 1, "C", readonly=True, aligned=False)
_SIGNED = types.Array(types.int8, 1, "C", readonly=True, aligned=False)
_HALVES = types.Array(types.uint16, 1, "C", readonly=True, aligned=False)
_WORDS = types.Array(types.uint32, 1, "C", readonly=True, aligned=False)
_FLOATS = types.Array(types.float32, 1, "C", readonly=True, aligned=False)
_BYTES_OUT = types.Array(types.uint8, 1, "C", aligned=True)
_HALVES_OUT = types.Array(types.uint16, 1, "C", aligned=True)
_WORDS_OUT = types.Array(types.uint32, 1, "C", aligned=True)
_FLOATS_OUT = types.Array(types.float32, 1, "C", aligned=True)

# As in checked_copy.
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_ILLEGAL = np.uint32(0xFFFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_LARGEST = int(np.float32(LARGEST_VALUE).view(np.uint32))
# Larger scales can exceed the limit.
_LARGEST_SCALE = int(np.float32(LARGEST_VALUE / 32).view(np.uint32))


def encode(wire_type: WireType, values: NDArray[np.float32]) -> memoryview:
    """See wire_types.encode."""
    match wire_type:
        case WireType.BFLOAT16:
            halves = np.empty(values.size, np.uint16)
            _narrow(values.view(np.uint32), halves)
            return halves.view(np.uint8).data
        case _ if wire_type in _QUANTISE:
            encoded = np.empty(encoded_bytes(wire_type, values.size), np.uint8)
            _QUANTISE[wire_type](values, values.view(np.uint32), encoded, BLOCK_ELEMENTS, wire_type.unit_bytes)
            return encoded.data
        case _:
            return wire_types.encode(wire_type, values)


def decode(wire_type: WireType, data: memoryview, out: NDArray[np.float32]) -> BadElement | None:
    """See wire_types.decode."""
    if out.size == 0:
        return None
    limit = _LARGEST
    match wire_type:
        case WireType.FLOAT32:
            worst = _copy(np.frombuffer(data, np.uint32), out.view(np.uint32))
        case WireType.BFLOAT16:
            worst = _widen(np.frombuffer(data, np.uint16), out.view(np.uint32))
        case _ if wire_type in _DEQUANTISE:
            raw = np.frombuffer(data, np.uint8)
            signed, block_bytes = raw.view(np.int8), wire_type.unit_bytes
            worst = _DEQUANTISE[wire_type](raw, signed, out, BLOCK_ELEMENTS, block_bytes)
            limit = _LARGEST_SCALE
        case _:
            return wire_types.decode(wire_type, data, out)
    return None if worst <= limit else wire_types.decode(wire_type, data, out)


def first_bad_value(values: NDArray[np.float32]) -> BadElement | None:
    """See wire_types.first_bad_value."""
    return None if _largest(values.view(np.uint32)) <= _LARGEST else wire_types.first_bad_value(values)


COMPILED = Codec(encode, decode, first_bad_value)


def warm_up() -> None:
    """Compile or load the kernels."""
    values = np.zeros(BLOCK_ELEMENTS + 1, np.float32)
    for wire_type in (WireType.FLOAT32, WireType.BFLOAT16, *BLOCKS):
        decode(wire_type, encode(wire_type, values), values)
    first_bad_value(values)


# Decoding kernels return the largest magnitude's bits.


@driver(_WORDS, _WORDS_OUT, parallel=False)
def _copy(data, out):  # type: ignore[no-untyped-def]
    largest = np.uint32(0)
    for i in range(out.size):
        bits = data[i]
        out[i] = bits
        largest = max(largest, np.uint32(bits & _MAGNITUDE))
    return largest


@driver(_WORDS, parallel=False)
def _largest(data):  # type: ignore[no-untyped-def]
    largest = np.uint32(0)
    for i in range(data.size):
        largest = max(largest, np.uint32(data[i] & _MAGNITUDE))
    return largest


@driver(_HALVES, _WORDS_OUT, parallel=False)
def _widen(data, out):  # type: ignore[no-untyped-def]
    largest = np.uint32(0)
    for i in range(out.size):
        bits = np.uint32(np.uint32(data[i]) << np.uint32(16))
        out[i] = bits
        largest = max(largest, np.uint32(bits & _MAGNITUDE))
    return largest


@driver(_WORDS, _HALVES_OUT, parallel=False)
def _narrow(values, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        bits = values[i]
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        out[i] = np.uint16(rounded) if np.uint32(bits & _MAGNITUDE) <= _INFINITY else np.uint16(0x7FC0)


@arithmetic
def _scale_bits(data, start):  # type: ignore[no-untyped-def]
    return np.uint32(
        np.uint32(data[start])
        | np.uint32(data[start + 1]) << np.uint32(8)
        | np.uint32(data[start + 2]) << np.uint32(16)
        | np.uint32(data[start + 3]) << np.uint32(24)
    )


# These return the largest scale's bits (negative: above infinity), or _ILLEGAL.


@driver(_BYTES, _SIGNED, _FLOATS_OUT, types.intp, types.intp, parallel=False)
def _dequantise_int4(data, signed, out, block_elements, block_bytes):  # type: ignore[no-untyped-def]
    largest, lowest, rest = np.uint32(0), np.int8(0), np.int8(0)
    for block in range((out.size + block_elements - 1) // block_elements):
        start, first = block * block_bytes, block * block_elements
        bits = np.uint32(_scale_bits(data, start))
        scale = bits.view(np.float32)
        values = out[first : first + block_elements]
        pairs = signed[start + 4 : start + 4 + (values.size + 1) // 2]
        for i in range(values.size // 2):
            low, high = np.int8(np.int8(pairs[i] << 4) >> 4), np.int8(pairs[i] >> 4)
            lowest = min(lowest, low, high)
            values[2 * i] = np.float32(low) * scale
            values[2 * i + 1] = np.float32(high) * scale
        if values.size % 2:
            last = pairs[pairs.size - 1]
            low, rest = np.int8(np.int8(last << 4) >> 4), np.int8(last >> 4)
            lowest = min(lowest, low)
            values[values.size - 1] = np.float32(low) * scale
        largest = max(largest, bits)
    return _ILLEGAL if lowest == -8 or rest != 0 else largest


@driver(_BYTES, _SIGNED, _FLOATS_OUT, types.intp, types.intp, parallel=False)
def _dequantise_sparse(data, signed, out, block_elements, block_bytes):  # type: ignore[no-untyped-def]
    group = np.intp(SPARSE_GROUP)
    largest, lowest, is_illegal = np.uint32(0), np.int8(0), False
    for block in range((out.size + block_elements - 1) // block_elements):
        start, first = block * block_bytes, block * block_elements
        bits = np.uint32(_scale_bits(data, start))
        scale = bits.view(np.float32)
        values = out[first : first + block_elements]
        values[:] = np.float32(0)
        whole = values.size // group
        groups = signed[start + 4 : start + 4 + (values.size + group - 1) // group]
        for i in range(whole):
            place, element = i * group + np.intp(groups[i] & 3), np.int8(groups[i] >> 2)
            lowest = min(lowest, element)
            values[place] = np.float32(element) * scale
        if whole < groups.size:
            # Only the last group of a vector can lack the element that its index names.
            place, element = whole * group + np.intp(groups[whole] & 3), np.int8(groups[whole] >> 2)
            lowest = min(lowest, element)
            if place < values.size:
                values[place] = np.float32(element) * scale
            else:
                is_illegal = True
        largest = max(largest, bits)
    return _ILLEGAL if is_illegal or lowest == -32 else largest


_DEQUANTISE = {
    WireType.INT4_BLOCK: _dequantise_int4,
    WireType.SPARSE_BLOCK: _dequantise_sparse,
}


@arithmetic
def _write_scale(words, levels, encoded, start):  # type: ignore[no-untyped-def]
    largest = np.uint32(0)
    for i in range(words.size):
        largest = max(largest, np.uint32(words[i] & _MAGNITUDE))
    magnitude = np.uint32(largest)
    scale = np.float32(magnitude.view(np.float32) / np.float32(levels))
    bits = scale.view(np.uint32)
    for i in range(4):
        encoded[start + i] = np.uint8(bits >> np.uint32(8 * i))
    return scale if scale != np.float32(0) else np.float32(np.inf)


@arithmetic
def _quotient(value, divisor, levels):  # type: ignore[no-untyped-def]
    quotient = np.rint(value / divisor)
    return np.int8(np.int32(min(max(quotient, np.float32(-levels)), np.float32(levels))))


@driver(_FLOATS, _WORDS, _BYTES_OUT, types.intp, types.intp, parallel=False)
def _quantise_int4(values, words, encoded, block_elements, block_bytes):  # type: ignore[no-untyped-def]
    for block in range((values.size + block_elements - 1) // block_elements):
        first, start = block * block_elements, block * block_bytes
        of_block = values[first : first + block_elements]
        divisor = _write_scale(words[first : first + block_elements], 7, encoded, start)
        pairs = encoded[start + 4 : start + block_bytes]
        for i in range(of_block.size // 2):
            low, high = _quotient(of_block[2 * i], divisor, 7), _quotient(of_block[2 * i + 1], divisor, 7)
            pairs[i] = np.uint8(np.uint8(low & 15) | np.uint8(high << 4))
        if of_block.size % 2:
            pairs[of_block.size // 2] = np.uint8(_quotient(of_block[of_block.size - 1], divisor, 7) & 15)


@driver(_FLOATS, _WORDS, _BYTES_OUT, types.intp, types.intp, parallel=False)
def _quantise_sparse(values, words, encoded, block_elements, block_bytes):  # type: ignore[no-untyped-def]
    group = np.intp(SPARSE_GROUP)
    for block in range((values.size + block_elements - 1) // block_elements):
        first, start = block * block_elements, block * block_bytes
        of_block, its_bits = values[first : first + block_elements], words[first : first + block_elements]
        divisor = _write_scale(its_bits, 31, encoded, start)
        for i in range((of_block.size + group - 1) // group):
            place, largest = i * group, np.uint32(its_bits[i * group] & _MAGNITUDE)
            for j in range(i * group + 1, min((i + 1) * group, of_block.size)):
                magnitude = np.uint32(its_bits[j] & _MAGNITUDE)
                if magnitude > largest:
                    place, largest = np.intp(j), magnitude
            element = _quotient(of_block[place], divisor, 31)
            encoded[start + 4 + i] = np.uint8(np.uint8(place - i * group) | np.uint8(element << 2))


_QUANTISE = {
    WireType.INT4_BLOCK: _quantise_int4,
    WireType.SPARSE_BLOCK: _quantise_sparse,
}
