"""Encoding of float32 values by wire type (transfer.proto), little-endian."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_core import wire_blocks
from gem_core.errors import WireTypeError
from gem_core.wire_blocks import BLOCK_ELEMENTS, LARGEST_VALUE, BadElement

__all__ = [
    "BLOCKS",
    "BLOCK_ELEMENTS",
    "ENCODED",
    "FINITE",
    "LARGEST_VALUE",
    "NUMPY",
    "BadElement",
    "Codec",
    "WireType",
    "decode",
    "encode",
    "encoded_bytes",
    "first_bad_value",
]

if sys.byteorder != "little":
    raise ImportError("gem_core needs a little-endian machine: the wire format is read and written in place")


class WireType(IntEnum):
    """Encoding of PARAMETERs, numbered as in the proto."""

    FLOAT32 = 1
    BFLOAT16 = 3
    # Reserved.
    SHARED_MEMORY = 5
    INT4_BLOCK = 6
    SPARSE_BLOCK = 7

    @property
    def of_whole(self) -> WireType:
        """The type of a whole payload: FLOAT32 instead of a type of differences."""
        return WireType.FLOAT32 if self in BLOCKS else self

    @property
    def unit_elements(self) -> int:
        """Elements between borders."""
        return BLOCK_ELEMENTS if self in BLOCKS else 1

    @property
    def unit_bytes(self) -> int:
        """Bytes between borders. Raises WireTypeError for SHARED_MEMORY."""
        try:
            return _UNIT_BYTES[self]
        except KeyError:
            names = ", ".join(wire_type.name for wire_type in _UNIT_BYTES)
            raise WireTypeError(f"{self.name} has no encoding: choose one of {names}") from None


# Of deltas and differences only: what one leaves out is in the next.
BLOCKS = {WireType.INT4_BLOCK: wire_blocks.INT4, WireType.SPARSE_BLOCK: wire_blocks.SPARSE}
_UNIT_BYTES = {WireType.FLOAT32: 4, WireType.BFLOAT16: 2}
_UNIT_BYTES |= {wire_type: block.bytes_of(BLOCK_ELEMENTS) for wire_type, block in BLOCKS.items()}
ENCODED = frozenset(_UNIT_BYTES)


class Codec(NamedTuple):
    """Equivalents of `encode`, `decode` and `first_bad_value`."""

    encode: Callable[[WireType, NDArray[np.float32]], memoryview]
    decode: Callable[[WireType, memoryview, NDArray[np.float32]], BadElement | None]
    first_bad_value: Callable[[NDArray[np.float32]], BadElement | None]


def encoded_bytes(wire_type: WireType, elements: int) -> int:
    """Encoded size. Raises WireTypeError for SHARED_MEMORY."""
    unit = wire_type.unit_bytes
    return BLOCKS[wire_type].bytes_of(elements) if wire_type in BLOCKS else elements * unit


def encode(wire_type: WireType, values: NDArray[np.float32]) -> memoryview:
    """Encode 1-D float32 `values` (blocks: from a border on); FLOAT32 gives a view.

    Non-finite values become bytes that `decode` refuses. Raises WireTypeError for SHARED_MEMORY.
    """
    match wire_type:
        case WireType.FLOAT32:
            return values.view(np.uint8).data
        case WireType.BFLOAT16:
            return _bfloat16_bits(values).view(np.uint8).data
        case _ if wire_type in BLOCKS:
            return BLOCKS[wire_type].encode_blocks(values).data
        case _:
            raise WireTypeError(f"{wire_type.name} has no encoding")


def decode(
    wire_type: WireType, data: memoryview, out: NDArray[np.float32], largest: float = LARGEST_VALUE
) -> BadElement | None:
    """Decode `data` into `out`, whose length must match; refused data leaves `out` unusable.

    Returns the first value not finite, beyond +-`largest` or in an illegal block. Raises WireTypeError for
    SHARED_MEMORY.
    """
    if out.size == 0:
        return None
    match wire_type:
        case WireType.FLOAT32:
            np.copyto(out.view(np.uint8), np.frombuffer(data, dtype=np.uint8))
        case WireType.BFLOAT16:
            bits = out.view(np.uint32)
            np.left_shift(np.frombuffer(data, dtype="<u2"), 16, out=bits, dtype=np.uint32)
        case _ if wire_type in BLOCKS:
            problem = BLOCKS[wire_type].decode_blocks(np.frombuffer(data, dtype=np.uint8), out)
            if problem is not None:
                return problem
        case _:
            raise WireTypeError(f"{wire_type.name} has no encoding")
    return first_bad_value(out, largest)


def first_bad_value(values: NDArray[np.float32], largest: float = LARGEST_VALUE) -> BadElement | None:
    """First value not finite or beyond +-`largest`."""
    if values.size == 0:
        return None
    # NaN propagates and compares false.
    if values.max() <= largest and values.min() >= -largest:
        return None
    index = int(np.argmin(np.abs(values) <= largest))
    return BadElement(index, describe_bad_value(values[index]))


NUMPY = Codec(encode, decode, first_bad_value)
# For parameters, which may exceed 1e30.
_FINITE = float(np.finfo(np.float32).max)
FINITE = Codec(encode, partial(decode, largest=_FINITE), partial(first_bad_value, largest=_FINITE))


def describe_bad_value(value: np.float32) -> str:
    """Describe a refused value."""
    return f"is {float(value)!r}" if not np.isfinite(value) else f"is {value:g}, beyond the limit of 1e30"


def _bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round half to even."""
    if values.size and np.isnan(values.max()):
        # Rounding could turn a NaN into zero.
        values = np.where(np.isnan(values), np.float32(np.nan), values)
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)
