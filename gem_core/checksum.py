"""CRC32C (Castagnoli), the checksum of every payload on the wire; and the word sum, of those in shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from awscrt import checksums

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["crc32c", "crc32c_of", "word_sum"]

# Each step holds the interpreter's lock: some 0.02 ms.
_STEP = 1024 * 1024


def crc32c(data: ReadableBuffer, crc: int = 0) -> int:
    """The CRC32C of `data`, continuing from the CRC `crc` of the bytes before it.

    `data` is any contiguous buffer; nothing is copied. crc32c(a + b) == crc32c(b, crc32c(a)).
    """
    view = memoryview(data)
    if view.nbytes == 0:
        return crc
    return int(checksums.crc32c(view, crc))


def crc32c_of(pieces: Iterable[memoryview], crc: int = 0) -> int:
    """The CRC32C of all these bytes, one behind the other, in steps between which other threads can run.

    `pieces` are contiguous views of bytes.
    """
    for piece in pieces:
        for start in range(0, piece.nbytes, _STEP):
            crc = crc32c(piece[start : start + _STEP], crc)
    return crc


def word_sum(data: ReadableBuffer, words_before: int = 0) -> int:
    """The word sum of `data` (shared_memory.proto): the sum of (2 i + 1) * mix(w_i) modulo 2^32.

    w_i are the 32-bit little-endian words of the payload, of which `data` begins at i = `words_before`; its last word
    is filled up with zeros. mix(w) = p ^ (p >> 15) with p = w * 0x9E3779B1 modulo 2^32: without it, words that differ
    in their high bits only, as those of rounded numbers do, could cancel. The word sum of a payload is the sum, modulo
    2^32, of those of its parts.
    """
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    total = 0
    for start in range(0, view.nbytes, _STEP):
        piece = view[start : start + _STEP]
        if piece.nbytes % 4:
            piece = memoryview(bytes(piece) + bytes(-piece.nbytes % 4))
        words = np.frombuffer(piece, "<u4") * np.uint32(0x9E3779B1)
        words ^= words >> np.uint32(15)
        first = words_before + start // 4
        odd = np.arange(2 * first + 1, 2 * (first + words.size) + 1, 2, dtype=np.uint64).astype(np.uint32)
        total += int(np.multiply(words, odd).sum(dtype=np.uint64))
    return total % (1 << 32)
