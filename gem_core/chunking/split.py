"""Cuts a payload into chunks, encoding the PARAMETERs on the way. The opposite is assemble.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gem_core.checksum import crc32c
from gem_core.chunking.memory import check_bytes, check_parameters
from gem_core.payload import PayloadFormat
from gem_core.wire_types import NUMPY, Codec

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Splitter"]


class Splitter:
    """The chunks of one payload, made while they are asked for. Iterate once; use from one thread at a time.

    The arrays are read while iterating, so they must not change until the iteration is over. Chunks of FLOAT32 are
    views into `parameters`; other wire types are encoded chunk by chunk, into a buffer of their own. Only a chunk that
    holds both PARAMETERs and what follows them is copied together.

    Args:
        payload: the format.
        parameters: all PARAMETERs, one dimension, contiguous, `payload.layout.parameter_count` elements.
        rest: the bytes of the BUFFERs (and CONSTANTs), `payload.rest_bytes` of them.
        chunk_bytes: the most bytes a chunk may have.
        start: the border to start at, when a torn transfer goes on.
        codec: what encodes; wire_kernels.py has a faster one.

    Attributes:
        chunk_count: chunks yielded so far: what the footer says after the last one.
        crc32c: CRC32C of the payload from byte 0 to the end of the last chunk yielded: what the footer says after the
            last one. Bytes before `start` are counted, too (they are encoded again for it).

    Raises:
        SizeMismatchError: `parameters` or `rest` is not of the payload's size.
        ChunkError: `start` is not a border, or `chunk_bytes` is out of range for this payload.
    """

    def __init__(
        self,
        payload: PayloadFormat,
        parameters: NDArray[np.float32],
        rest: ReadableBuffer,
        chunk_bytes: int,
        start: int = 0,
        codec: Codec = NUMPY,
    ) -> None:
        self.chunk_count = 0
        self.crc32c = 0
        self._payload = payload
        self._parameters = check_parameters(payload, parameters)
        self._rest = check_bytes(memoryview(rest), payload.rest_bytes, "rest")
        self._start = start
        self._encode = codec.encode
        self._cuts = payload.cut(chunk_bytes, start)
        self._chunk_bytes = chunk_bytes

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, data) in order."""
        for offset, end in self._payload.cut(self._chunk_bytes):
            if offset >= self._start:
                break
            self.crc32c = crc32c(self._bytes(offset, min(end, self._start)), self.crc32c)
        for offset, end in self._cuts:
            data = self._bytes(offset, end)
            self.crc32c = crc32c(data, self.crc32c)
            self.chunk_count += 1
            yield offset, data

    def _bytes(self, start: int, stop: int) -> memoryview:
        boundary = self._payload.parameter_bytes
        if start >= boundary:
            return self._rest[start - boundary : stop - boundary]
        elements = self._payload.parameter_elements(start, min(stop, boundary))
        encoded = self._encode(self._payload.wire_type, self._parameters[elements])
        if stop <= boundary:
            return encoded
        return memoryview(b"".join((encoded, self._rest[: stop - boundary])))
