"""Splits payloads into chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gem_core.checksum import crc32c
from gem_core.chunking.memory import check_bytes, check_parameters
from gem_core.errors import ChunkError
from gem_core.payload import PayloadFormat
from gem_core.wire_types import NUMPY, Codec, WireType

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOTHING = memoryview(b"")

__all__ = ["CopyingSplitter", "DifferenceSplitter", "ScaledSplitter", "Source", "Splitter"]


class Source(ABC):
    """A payload's chunks from byte `start` on, equal in each iteration. Not thread-safe.

    The data must not change during an iteration, and a chunk is valid until the next one is requested. The payload's
    first part, [0, `len(direct)`), is sent without a copy; subclasses produce the other bytes.

    Attributes:
        crc32c: CRC32C of the payload from byte 0 (also if `start` > 0) to the end of the last chunk.

    Raises:
        ChunkError: `start` is beyond the payload's end, or `chunk_bytes` is out of range.
    """

    def __init__(self, payload: PayloadFormat, chunk_bytes: int, start: int = 0, direct: memoryview = _NOTHING) -> None:
        if not 0 <= start <= payload.byte_count:
            raise ChunkError(f"start {start} is not in this payload of {payload.byte_count} bytes")
        self.payload = payload
        self._direct = direct
        self.crc32c = 0
        self._start = start
        self._border = payload.border_at_or_before(start)
        self._chunk_bytes = chunk_bytes
        self._chunks = payload.cut(chunk_bytes, self._border)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the chunks in order."""
        self.crc32c = 0
        if self._border:
            for offset, end in self.payload.cut(self._chunk_bytes):
                if offset >= self._border:
                    break
                self.crc32c = crc32c(self._bytes(offset, min(end, self._border)), self.crc32c)
        direct, direct_bytes = self._direct, len(self._direct)
        for offset, end in self._chunks:
            data = direct[offset:end] if end <= direct_bytes else self._bytes(offset, end)
            self.crc32c = crc32c(data, self.crc32c)
            yield data if offset >= self._start else data[self._start - offset :]

    @abstractmethod
    def _bytes(self, start: int, stop: int) -> memoryview:
        """Payload bytes [start, stop), two borders."""


class Splitter(Source):
    """Encodes contiguous float32 `parameters` chunk by chunk, followed by the bytes `rest`.

    Raises:
        SizeMismatchError: wrong size of `parameters` or `rest`.
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
        self._parameters = check_parameters(payload, parameters)
        is_direct = payload.wire_type is WireType.FLOAT32
        super().__init__(payload, chunk_bytes, start, parameters.view(np.uint8).data if is_direct else _NOTHING)
        self._rest = check_bytes(memoryview(rest), payload.rest_bytes, "rest")
        self._codec = codec

    def _bytes(self, start: int, stop: int) -> memoryview:
        boundary = self.payload.parameter_bytes
        if start >= boundary:
            return self._rest[start - boundary : stop - boundary]
        encoded = self._encode_parameters(self.payload.parameter_elements(start, min(stop, boundary)))
        if stop <= boundary:
            return encoded
        return memoryview(b"".join((encoded, self._rest[: stop - boundary])))

    def _encode_parameters(self, elements: slice) -> memoryview:
        return self._codec.encode(self.payload.wire_type, self._parameters[elements])


class CopyingSplitter(Splitter):
    """A splitter that also copies the parameters to `copy`."""

    def __init__(
        self,
        payload: PayloadFormat,
        parameters: NDArray[np.float32],
        rest: ReadableBuffer,
        chunk_bytes: int,
        start: int = 0,
        codec: Codec = NUMPY,
        *,
        copy: NDArray[np.float32],
    ) -> None:
        super().__init__(payload, parameters, rest, chunk_bytes, start, codec)
        self._copy = check_parameters(payload, copy)
        self._direct = _NOTHING  # each chunk is copied on its way

    @override
    def _encode_parameters(self, elements: slice) -> memoryview:
        np.copyto(self._copy[elements], self._parameters[elements])
        return super()._encode_parameters(elements)


class DifferenceSplitter(CopyingSplitter):
    """Encodes `parameters` minus `copy`, in one iteration only, and adds to `copy` what the peer decodes."""

    @override
    def _encode_parameters(self, elements: slice) -> memoryview:
        wire_type, copy = self.payload.wire_type, self._copy[elements]
        difference = self._parameters[elements] - copy
        encoded = self._codec.encode(wire_type, difference)
        self._codec.decode(wire_type, encoded, difference)
        copy += difference
        return encoded


class ScaledSplitter(Source):
    """Splits an encoded payload, optionally multiplying FLOAT32 PARAMETERs."""

    def __init__(self, payload: PayloadFormat, chunk_bytes: int) -> None:
        super().__init__(payload, chunk_bytes)
        self._encoded = memoryview(b"")
        self._scale: float | None = None
        self._factor = np.empty((), np.float32)
        self._scratch = memoryview(b"")
        self._scaled = np.empty(0, np.float32)  # same memory

    def load(self, encoded: memoryview, scale: float | None = None) -> Self:
        """Send `encoded` (`payload.byte_count` bytes) from now on, PARAMETERs times `scale` unless None."""
        self._encoded = encoded
        self._direct = encoded if scale is None else _NOTHING
        if scale is not None:
            self._factor[()] = scale
            if not self._scaled.size:
                self._scaled = np.empty(-(-min(self._chunk_bytes, self.payload.byte_count) // 4), np.float32)
                self._scratch = self._scaled.view(np.uint8).data
        self._scale = scale
        return self

    def _bytes(self, start: int, stop: int) -> memoryview:
        elements = max(0, min(stop, self.payload.parameter_bytes) - start) // 4
        if elements:
            values = np.frombuffer(self._encoded, np.float32, elements, start)
            np.multiply(values, self._factor, self._scaled[:elements])
        if 4 * elements < stop - start:
            self._scratch[4 * elements : stop - start] = self._encoded[start + 4 * elements : stop]
        return self._scratch[: stop - start]
