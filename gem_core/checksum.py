"""CRC32C (Castagnoli), the checksum of every payload on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["crc32c", "crc32c_of"]

# google_crc32c holds the interpreter's lock; this much takes some 0.1 ms.
_STEP = 1024 * 1024


def crc32c(data: ReadableBuffer, crc: int = 0) -> int:
    """The CRC32C of `data`, continuing from the CRC `crc` of the bytes before it.

    `data` is any contiguous buffer; nothing is copied. crc32c(a + b) == crc32c(b, crc32c(a)).
    """
    view = memoryview(data)
    if view.nbytes == 0:
        return crc
    # The C extension takes bytes and NumPy arrays, but no memoryview.
    return int(google_crc32c.extend(crc, np.frombuffer(view, dtype=np.uint8)))


def crc32c_of(pieces: Iterable[memoryview], crc: int = 0) -> int:
    """The CRC32C of all these bytes, one behind the other, in steps between which other threads can run.

    `pieces` are contiguous views of bytes.
    """
    for piece in pieces:
        for start in range(0, piece.nbytes, _STEP):
            crc = crc32c(piece[start : start + _STEP], crc)
    return crc
