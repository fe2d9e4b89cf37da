"""CRC32C (wire) and word sum (shared memory) of payloads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from awscrt import checksums

from gem_core.thresholds import CHECKSUM_STEP_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["crc32c", "crc32c_of", "word_sum"]


class _Checksum(Protocol):
    def __call__(self, data: ReadableBuffer, crc: int = 0, /) -> int: ...


# CRC32C of a contiguous buffer; `crc`: of the bytes before it. Imported as it is, because each chunk needs it.
crc32c: _Checksum = checksums.crc32c


def crc32c_of(pieces: Iterable[memoryview], crc: int = 0) -> int:
    """CRC32C of concatenated contiguous byte views; releases the GIL between."""
    for piece in pieces:
        for start in range(0, piece.nbytes, CHECKSUM_STEP_BYTES):
            crc = crc32c(piece[start : start + CHECKSUM_STEP_BYTES], crc)
    return crc


def word_sum(data: ReadableBuffer, words_before: int = 0) -> int:
    """Sum of (2 i + 1) * mix(w_i) modulo 2^32 (shared_memory.proto); parts add up.

    w_i: 32-bit little-endian words of the zero-padded payload, of which `data` begins at `words_before`. mix(w) = p ^
    (p >> 15), p = w * 0x9E3779B1 modulo 2^32.
    """
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    total = 0
    for start in range(0, view.nbytes, CHECKSUM_STEP_BYTES):
        piece = view[start : start + CHECKSUM_STEP_BYTES]
        if piece.nbytes % 4:
            piece = memoryview(bytes(piece) + bytes(-piece.nbytes % 4))
        words = np.frombuffer(piece, "<u4") * np.uint32(0x9E3779B1)
        words ^= words >> np.uint32(15)
        first = words_before + start // 4
        odd = np.arange(2 * first + 1, 2 * (first + words.size) + 1, 2, dtype=np.uint64).astype(np.uint32)
        total += int(np.multiply(words, odd).sum(dtype=np.uint64))
    return total % (1 << 32)
