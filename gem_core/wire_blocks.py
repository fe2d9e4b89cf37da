"""Encodings in blocks of 256 float32 values, each with a float32 scale (transfer.proto)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_ELEMENTS", "INT4", "LARGEST_VALUE", "SPARSE", "SPARSE_GROUP", "BadElement", "Block"]

BLOCK_ELEMENTS = 256
SCALE_BYTES = 4
# SPARSE holds one element of each.
SPARSE_GROUP = 4
# Larger deltas could make the moment infinite.
LARGEST_VALUE = 1e30

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class BadElement(NamedTuple):
    """First refused value."""

    position: int
    problem: str


class Block(NamedTuple):
    """One encoding; arrays have a row per block, `data` without scales.

    `data_bytes`: by elements. `quantise(rows, scales, data)`; `dequantise(data, scales, out)` returns the first illegal
    element.
    """

    levels: int
    data_bytes: Callable[[int], int]
    quantise: Callable[[Floats, Floats, Bytes], None]
    dequantise: Callable[[Bytes, Floats, Floats], BadElement | None]

    def bytes_of(self, elements: int) -> int:
        """Encoded size."""
        blocks, rest = divmod(elements, BLOCK_ELEMENTS)
        whole = blocks * (SCALE_BYTES + self.data_bytes(BLOCK_ELEMENTS))
        return whole + (SCALE_BYTES + self.data_bytes(rest) if rest else 0)

    def encode_blocks(self, values: Floats) -> Bytes:
        """Encode 1-D `values`; `decode_blocks` refuses scales of non-finite ones."""
        encoded = np.empty(self.bytes_of(values.size), np.uint8)
        for rows, data in self._rows(values, encoded):
            # The maximum may be -0, which is no legal scale.
            scales = np.abs(np.maximum(rows.max(axis=1), -rows.min(axis=1)))
            scales /= np.float32(self.levels)
            data[:, :SCALE_BYTES] = scales.view(np.uint8).reshape(-1, SCALE_BYTES)
            self.quantise(rows, scales, data[:, SCALE_BYTES:])
        return encoded

    def decode_blocks(self, data: Bytes, out: Floats) -> BadElement | None:
        """Decode into `out`; return the first illegal block or element."""
        first = 0
        for rows, encoded in self._rows(out, data):
            problem = self._decode_rows(encoded, rows)
            if problem is not None:
                return problem._replace(position=problem.position + first)
            first += rows.size
        return None

    def _decode_rows(self, data: Bytes, out: Floats) -> BadElement | None:
        scales = np.ascontiguousarray(data[:, :SCALE_BYTES]).view("<f4").reshape(-1)
        if not (scales.min() >= 0 and scales.max() <= LARGEST_VALUE):
            row = int(np.argmin((scales >= 0) & (scales <= LARGEST_VALUE)))
            return BadElement(row * out.shape[1], f"starts a block whose scale {float(scales[row])!r} is illegal")
        return self.dequantise(data[:, SCALE_BYTES:], scales, out)

    def _rows(self, values: Floats, encoded: Bytes) -> list[tuple[Floats, Bytes]]:
        """Whole blocks, then the last, shorter one."""
        count = values.size // BLOCK_ELEMENTS
        split, border = count * BLOCK_ELEMENTS, self.bytes_of(count * BLOCK_ELEMENTS)
        found = []
        if count:
            found.append((values[:split].reshape(count, -1), encoded[:border].reshape(count, -1)))
        if split < values.size:
            found.append((values[split:].reshape(1, -1), encoded[border:].reshape(1, -1)))
        return found


def _quotients(rows: Floats, scales: Floats, levels: int) -> Floats:
    # With scale 0 every element is 0.
    divisors = np.where(scales == 0, np.float32(np.inf), scales)
    # Non-finite values have a non-finite scale.
    with np.errstate(invalid="ignore"):
        quotients = np.divide(rows, divisors[:, None])
        np.rint(quotients, out=quotients)
        # Denormal scales allow larger quotients.
        return np.clip(quotients, -levels, levels, out=quotients)


def _quantise_int4(rows: Floats, scales: Floats, data: Bytes) -> None:
    padded = np.zeros((len(rows), 2 * data.shape[1]), np.int8)
    with np.errstate(invalid="ignore"):
        padded[:, : rows.shape[1]] = _quotients(rows, scales, 7)
    nibbles = padded.view(np.uint8) & 15
    np.bitwise_or(nibbles[:, ::2], nibbles[:, 1::2] << 4, out=data)


def _dequantise_int4(data: Bytes, scales: Floats, out: Floats) -> BadElement | None:
    quantised = np.empty((len(data), 2 * data.shape[1]), np.int8)
    signed = data.view(np.int8)
    # Shifts of signed integers keep the sign.
    np.right_shift(np.left_shift(signed, 4), 4, out=quantised[:, ::2])
    np.right_shift(signed, 4, out=quantised[:, 1::2])
    if quantised.min() == -8:
        row, column = divmod(int(np.argmin(quantised.reshape(-1))), quantised.shape[1])
        return BadElement(row * out.shape[1] + min(column, out.shape[1] - 1), "is -8, which INT4_BLOCK does not use")
    if quantised[:, out.shape[1] :].any():
        return BadElement(out.size - 1, "is followed by a number that is not 0, in the last half of a byte")
    np.multiply(quantised[:, : out.shape[1]], scales[:, None], out=out)
    return None


def _quantise_sparse(rows: Floats, scales: Floats, data: Bytes) -> None:
    count = data.shape[1]
    magnitudes = np.zeros((len(rows), count * SPARSE_GROUP), np.float32)
    np.abs(rows, out=magnitudes[:, : rows.shape[1]])
    data[...] = np.argmax(magnitudes.reshape(-1, count, SPARSE_GROUP), axis=2)
    with np.errstate(invalid="ignore"):
        chosen = np.take_along_axis(rows, _positions(data), axis=1)
        data |= _quotients(chosen, scales, 31).astype(np.int8).view(np.uint8) << 2


def _dequantise_sparse(data: Bytes, scales: Floats, out: Floats) -> BadElement | None:
    indices, quantised = data & 3, data.view(np.int8) >> 2
    places = _positions(indices)
    is_outside = places >= out.shape[1]
    if is_outside.any():
        row, group = divmod(int(np.argmax(is_outside)), data.shape[1])
        position = row * out.shape[1] + group * SPARSE_GROUP
        return BadElement(position, f"starts a group without element {indices[row, group]}")
    if quantised.min() == -32:
        row, group = divmod(int(np.argmin(quantised)), data.shape[1])
        return BadElement(row * out.shape[1] + int(places[row, group]), "is -32, which SPARSE_BLOCK does not use")
    out[...] = 0
    np.put_along_axis(out, places, quantised * scales[:, None], axis=1)
    return None


def _positions(indices: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """In the block, of indices in their groups."""
    return indices + SPARSE_GROUP * np.arange(indices.shape[1])


INT4 = Block(7, lambda elements: -(-elements // 2), _quantise_int4, _dequantise_int4)
SPARSE = Block(31, lambda elements: -(-elements // SPARSE_GROUP), _quantise_sparse, _dequantise_sparse)
