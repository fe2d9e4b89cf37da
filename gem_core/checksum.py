"""CRC32C (Castagnoli), the checksum of every payload on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["crc32c"]


def crc32c(data: ReadableBuffer, crc: int = 0) -> int:
    """The CRC32C of `data`, continuing from the CRC `crc` of the bytes before it.

    `data` is any contiguous buffer; nothing is copied. crc32c(a + b) == crc32c(b, crc32c(a)).
    """
    view = memoryview(data)
    if view.nbytes == 0:
        return crc
    # The C extension takes bytes and NumPy arrays, but no memoryview.
    return int(google_crc32c.extend(crc, np.frombuffer(view, dtype=np.uint8)))
