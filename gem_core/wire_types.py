"""How float32 values become bytes and back, one function pair for all wire types (transfer.proto, enum WireType).

The functions work on one chunk at a time, vectorised, with temporaries of the chunk's size. They know nothing about
tensors, offsets in a payload or checksums. All formats are little-endian, and so is every machine this runs on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import WireTypeError

__all__ = [
    "BLOCK_ELEMENTS",
    "FINITE",
    "NUMPY",
    "BadElement",
    "Codec",
    "WireType",
    "decode",
    "encode",
    "encoded_bytes",
    "judge",
]

if sys.byteorder != "little":  # the views below would show other numbers
    raise ImportError("gem_core needs a little-endian machine: the wire format is read and written in place")

# Elements of one INT8_BLOCK block, and its bytes: a float32 scale and the elements (transfer.proto).
BLOCK_ELEMENTS = 256
BLOCK_BYTES = 4 + BLOCK_ELEMENTS
# Of a delta: finite giants make the moment infinite (DESIGN.md, section 2), so staging refuses them.
LARGEST_VALUE = 1e30
LARGEST_FLOAT16 = 65504.0


class WireType(IntEnum):
    """How PARAMETERs travel; the numbers are those of the proto."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8_BLOCK = 4
    # Reserved: the payload lies in shared memory, so nothing is encoded.
    SHARED_MEMORY = 5

    @property
    def unit_elements(self) -> int:
        """Elements between two borders at which a chunk may be cut: 256 for INT8_BLOCK, else 1."""
        return BLOCK_ELEMENTS if self is WireType.INT8_BLOCK else 1

    @property
    def unit_bytes(self) -> int:
        """Bytes of so many elements.

        Raises:
            WireTypeError: for SHARED_MEMORY, which has no encoding.
        """
        try:
            return _UNIT_BYTES[self]
        except KeyError:
            names = ", ".join(wire_type.name for wire_type in _UNIT_BYTES)
            raise WireTypeError(f"{self.name} has no encoding: choose one of {names}") from None


_UNIT_BYTES = {WireType.FLOAT32: 4, WireType.FLOAT16: 2, WireType.BFLOAT16: 2, WireType.INT8_BLOCK: BLOCK_BYTES}


class BadElement(NamedTuple):
    """The first value that `decode` refused: its position in the decoded chunk and what is wrong with it."""

    position: int
    problem: str


class Codec(NamedTuple):
    """Functions as `encode`, `decode` and `judge` below: the same bytes, and the same judgement of bad ones."""

    encode: Callable[[WireType, NDArray[np.float32]], memoryview]
    decode: Callable[[WireType, memoryview, NDArray[np.float32]], BadElement | None]
    judge: Callable[[NDArray[np.float32]], BadElement | None]


def encoded_bytes(wire_type: WireType, elements: int) -> int:
    """Bytes that `elements` values take. The last block of INT8_BLOCK may be shorter than 256 elements.

    Raises:
        WireTypeError: for SHARED_MEMORY, which has no encoding.
    """
    unit = wire_type.unit_bytes
    if wire_type is WireType.INT8_BLOCK:
        return elements + 4 * -(-elements // BLOCK_ELEMENTS)
    return elements * unit


def encode(wire_type: WireType, values: NDArray[np.float32]) -> memoryview:
    """The bytes of `values` (one dimension, float32).

    FLOAT32 gives a view of `values`, everything else a new buffer. FLOAT16 saturates at +-65504. INT8_BLOCK needs
    `values` to start at a block border. Values that are not finite give bytes that `decode` refuses.

    Raises:
        WireTypeError: for SHARED_MEMORY, which has no encoding.
    """
    match wire_type:
        case WireType.FLOAT32:
            return values.view(np.uint8).data
        case WireType.FLOAT16:
            return _float16(values).view(np.uint8).data
        case WireType.BFLOAT16:
            return _bfloat16_bits(values).view(np.uint8).data
        case WireType.INT8_BLOCK:
            return _encode_int8(values).data
        case _:
            raise WireTypeError(f"{wire_type.name} has no encoding")


def decode(
    wire_type: WireType, data: memoryview, out: NDArray[np.float32], largest: float = LARGEST_VALUE
) -> BadElement | None:
    """Decode `data` into `out`, whose length must be the number of values in `data`; refuse bad ones.

    Returns:
        None, or the first value that is not finite or beyond +-`largest`, or whose block is illegal; `out` then holds
        whatever was decoded, and must not be used.

    Raises:
        WireTypeError: for SHARED_MEMORY, which has no encoding.
    """
    if out.size == 0:
        return None
    match wire_type:
        case WireType.FLOAT32:
            np.copyto(out.view(np.uint8), np.frombuffer(data, dtype=np.uint8))
        case WireType.FLOAT16:
            np.copyto(out, np.frombuffer(data, dtype="<f2"))
        case WireType.BFLOAT16:
            bits = out.view(np.uint32)
            np.left_shift(np.frombuffer(data, dtype="<u2"), 16, out=bits, dtype=np.uint32)
        case WireType.INT8_BLOCK:
            problem = _decode_int8(np.frombuffer(data, dtype=np.uint8), out)
            if problem is not None:
                return problem
        case _:
            raise WireTypeError(f"{wire_type.name} has no encoding")
    return judge(out, largest)


def judge(values: NDArray[np.float32], largest: float = LARGEST_VALUE) -> BadElement | None:
    """The first of `values` that is not finite or beyond +-`largest`; None if all are within."""
    if values.size == 0:
        return None
    # Both reductions propagate NaN, with which every comparison is false; that is cheaper than isfinite and abs.
    if values.max() <= largest and values.min() >= -largest:
        return None
    index = int(np.argmin(np.abs(values) <= largest))
    return BadElement(index, describe_bad_value(values[index]))


NUMPY = Codec(encode, decode, judge)
# Of parameters, which legal deltas may have carried beyond 1e30: every finite value.
_FINITE = float(np.finfo(np.float32).max)
FINITE = Codec(encode, partial(decode, largest=_FINITE), partial(judge, largest=_FINITE))


def describe_bad_value(value: np.float32) -> str:
    """What is wrong with a value that must not reach the model."""
    return f"is {float(value)!r}" if not np.isfinite(value) else f"is {value:g}, beyond the limit of 1e30"


def _float16(values: NDArray[np.float32]) -> NDArray[np.float16]:
    if values.size and not (values.max() <= LARGEST_FLOAT16 and values.min() >= -LARGEST_FLOAT16):
        limited = np.clip(values, -LARGEST_FLOAT16, LARGEST_FLOAT16)
        # Only finite values saturate; infinity must arrive as infinity, to be refused.
        np.copyto(limited, values, where=np.isinf(values))
        values = limited
    return values.astype(np.float16)


def _bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Upper halves of `values`, rounded half to even by adding just under, or exactly, half of the last place."""
    if values.size and np.isnan(values.max()):
        # The carry could run through all bits of a NaN and leave a zero.
        values = np.where(np.isnan(values), np.float32(np.nan), values)
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)


def _encode_int8(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    encoded = np.empty(encoded_bytes(WireType.INT8_BLOCK, values.size), np.uint8)
    whole = values.size // BLOCK_ELEMENTS
    split = whole * BLOCK_ELEMENTS
    if whole:
        _encode_blocks(values[:split].reshape(whole, -1), encoded[: whole * BLOCK_BYTES].reshape(whole, -1))
    if split < values.size:
        _encode_blocks(values[split:].reshape(1, -1), encoded[whole * BLOCK_BYTES :].reshape(1, -1))
    return encoded


def _encode_blocks(blocks: NDArray[np.float32], encoded: NDArray[np.uint8]) -> None:
    """Encode rows of `blocks` into rows of `encoded`, which have 4 bytes more."""
    # abs: the larger of 0 and -0 may be -0, and a scale is never negative.
    scales = np.abs(np.maximum(blocks.max(axis=1), -blocks.min(axis=1)))
    scales /= np.float32(127)
    encoded[:, :4] = scales.view(np.uint8).reshape(-1, 4)
    # A scale of 0 (zeros, or denormals below 127 / 2 units) would divide by 0; every q of such a block is 0.
    divisors = np.where(scales == 0, np.float32(np.inf), scales)
    # What is not finite has no quotient and no integer, but then the scale is not finite either: decode refuses it.
    with np.errstate(invalid="ignore"):
        quotients = np.divide(blocks, divisors[:, None])
        np.rint(quotients, out=quotients)
        # Denormal scales are so coarse that a quotient can exceed 127.
        np.clip(quotients, -127, 127, out=quotients)
        encoded[:, 4:].view(np.int8)[...] = quotients


def _decode_int8(data: NDArray[np.uint8], out: NDArray[np.float32]) -> BadElement | None:
    whole = out.size // BLOCK_ELEMENTS
    split = whole * BLOCK_ELEMENTS
    problem = None
    if whole:
        problem = _decode_blocks(data[: whole * BLOCK_BYTES].reshape(whole, -1), out[:split].reshape(whole, -1))
    if problem is None and split < out.size:
        problem = _decode_blocks(data[whole * BLOCK_BYTES :].reshape(1, -1), out[split:].reshape(1, -1))
        if problem is not None:
            problem = problem._replace(position=problem.position + split)
    return problem


def _decode_blocks(data: NDArray[np.uint8], out: NDArray[np.float32]) -> BadElement | None:
    """Decode rows of `data` into rows of `out`, which have 4 elements fewer than the rows have bytes."""
    scales = np.ascontiguousarray(data[:, :4]).view("<f4").reshape(-1)
    quantised = data[:, 4:].view(np.int8)
    if not (scales.min() >= 0 and scales.max() <= LARGEST_VALUE):
        row = int(np.argmin((scales >= 0) & (scales <= LARGEST_VALUE)))
        return BadElement(row * out.shape[1], f"starts a block whose scale {float(scales[row])!r} is illegal")
    if quantised.min() == -128:
        index = int(np.argmin(quantised.reshape(-1)))
        return BadElement(index, "is -128, which INT8_BLOCK does not use")
    np.multiply(quantised, scales[:, None], out=out)
    return None
