"""Puts a payload together from its chunks, checking every one. The opposite is split.py.

An assembler is a gate, not a buffer: it writes into memory that its caller owns, and says no to the first chunk that
is not the next one. It knows neither streams nor time-outs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from gem_core.checksum import crc32c
from gem_core.chunking.memory import check_bytes, check_parameters
from gem_core.errors import BadValueError, ChecksumError, ChunkError, CoreError, SizeMismatchError
from gem_core.layout import ElementType, TensorSpec
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat, Region
from gem_core.wire_types import NUMPY, BadElement, Codec, WireType

__all__ = ["Assembler", "DecodingAssembler", "RawAssembler", "check_rest"]


class Assembler(ABC):
    """Takes the chunks of one payload in order, then its footer. Use from one thread at a time.

    After the first error, and after `finish`, it refuses everything else with a ChunkError: a transfer that was wrong
    once cannot become right.

    Attributes:
        payload: the format.
        received: bytes of the payload that are in place, from byte 0: the offset at which the next chunk must start.
        chunk_count: chunks taken by this assembler.
        crc32c: CRC32C of the bytes [0, received) as sent.
        complete: whether `finish` has accepted the footer; until then nothing that was written may be used.
    """

    def __init__(self, payload: PayloadFormat, start: int = 0, crc32c: int = 0) -> None:
        if not payload.is_border(start):
            raise ChunkError(f"cannot go on at offset {start}: it is not a border of this payload; start from 0")
        self.payload = payload
        self.received = start
        self.chunk_count = 0
        self.crc32c = crc32c
        self.complete = False
        self._refused = ""  # why: not the error, whose frames know this object, and keep the chunk that it is about

    def place(self, offset: int, count: int) -> memoryview | None:
        """Memory that the next chunk may be received into, if this could be it: then call `add_placed`.

        What is written there does not count before that. None: there is no such memory; `add` the chunk.
        """
        end = offset + count
        if offset != self.received or not 1 <= count <= MAX_CHUNK_BYTES or end > self.payload.byte_count:
            return None
        return self._place(offset, end)

    def add_placed(self, offset: int, count: int) -> None:
        """`add`, of a chunk that was received to its place."""
        data = self.place(offset, count)
        if data is None:
            raise ChunkError(f"a chunk of {count} bytes at offset {offset} has no place")
        self._add(offset, data, is_placed=True)

    def add(self, offset: int, data: memoryview) -> None:
        """Take the next chunk: copy (and decode) `data`, which lies at `offset` of the payload.

        Raises:
            ChunkError: empty, more than 2 MiB, not where the last one ended, beyond the payload's end, or not cut at a
                border; or an earlier call failed.
            BadValueError: a value that must not pass (decoding assemblers only).
        """
        self._add(offset, data, is_placed=False)

    def _add(self, offset: int, data: memoryview, *, is_placed: bool) -> None:
        self._check_open()
        try:
            end = offset + data.nbytes
            self._check_place(offset, end)
            if is_placed:
                self._judge(offset, end)
            else:
                self._take(offset, end, data)
        except CoreError as error:
            self._refused = str(error)
            raise
        self.crc32c = crc32c(data, self.crc32c)
        self.received = end
        self.chunk_count += 1

    def finish(self, byte_count: int, chunk_count: int, crc32c: int) -> None:
        """Compare the footer with what came; afterwards the payload is complete.

        Raises:
            SizeMismatchError: the footer speaks of other bytes or chunks, or chunks are missing.
            ChecksumError: the bytes differ from those that were sent.
            ChunkError: an earlier call failed, or the payload is complete already.
        """
        self._check_open()
        try:
            self._check_footer(byte_count, chunk_count, crc32c)
        except CoreError as error:
            self._refused = str(error)
            raise
        self.complete = True

    @abstractmethod
    def _take(self, start: int, stop: int, data: memoryview) -> None:
        """Write the bytes [start, stop) of the payload, two borders."""

    @abstractmethod
    def _place(self, start: int, stop: int) -> memoryview | None:
        """Where `_take` would write these bytes as they are; None: it would not."""

    @abstractmethod
    def _judge(self, start: int, stop: int) -> None:
        """What `_take` does, of bytes that lie at their place."""

    def _check_place(self, offset: int, end: int) -> None:
        if not 1 <= end - offset <= MAX_CHUNK_BYTES:
            raise ChunkError(f"a chunk of {end - offset} bytes; chunks must have 1 to {MAX_CHUNK_BYTES} bytes")
        if offset != self.received:
            raise ChunkError(f"a chunk at offset {offset}; the next one must start at {self.received}")
        if end > self.payload.byte_count:
            raise ChunkError(f"a chunk that ends at {end}; it must end at or before {self.payload.byte_count}")
        if not self.payload.is_border(end):
            raise ChunkError(
                f"a chunk that ends at {end}, within an element or block: "
                f"cut it at {self.payload.border_at_or_before(end)}"
            )

    def _check_footer(self, byte_count: int, chunk_count: int, crc32c: int) -> None:
        expected = self.payload.byte_count
        if byte_count != expected:
            raise SizeMismatchError(
                f"the footer says {byte_count} bytes; a payload of this layout must have {expected}"
            )
        if self.received != expected:
            raise SizeMismatchError(f"the footer came after {self.received} of {expected} bytes: send all chunks first")
        if chunk_count != self.chunk_count:
            raise SizeMismatchError(
                f"the footer says {chunk_count} chunks, but {self.chunk_count} came: count what you send"
            )
        if crc32c != self.crc32c:
            raise ChecksumError(
                f"CRC32C {self.crc32c:#010x} of the received bytes differs from the footer's {crc32c:#010x}: "
                "the payload was damaged on its way; send it again"
            )

    def _check_open(self) -> None:
        if self._refused:
            raise ChunkError(f"this transfer was refused before ({self._refused}): start a new one")
        if self.complete:
            raise ChunkError("this transfer is complete: start a new one")


class RawAssembler(Assembler):
    """Keeps the bytes as they were sent, for who decodes them elsewhere (on a device) or not at all.

    Args:
        payload: the format.
        into: where the payload goes: `payload.byte_count` writable bytes.
        start: go on after a torn transfer whose bytes [0, start) are in `into` already: `received` of its assembler.
        crc32c: `crc32c` of that assembler.

    Raises:
        SizeMismatchError: `into` is not of the payload's size.
        ChunkError: `start` is not a border.
    """

    def __init__(self, payload: PayloadFormat, into: memoryview, start: int = 0, crc32c: int = 0) -> None:
        super().__init__(payload, start, crc32c)
        self._into = check_bytes(into, payload.byte_count, "into")

    def _place(self, start: int, stop: int) -> memoryview:
        return self._into[start:stop]

    def _judge(self, start: int, stop: int) -> None:
        """They are kept as they were sent, whatever they are."""

    def _take(self, start: int, stop: int, data: memoryview) -> None:
        # Through NumPy, because memoryview's own assignment holds the interpreter lock while it copies.
        np.copyto(np.frombuffer(self._into[start:stop], np.uint8), np.frombuffer(data, np.uint8))


class DecodingAssembler(Assembler):
    """Decodes PARAMETERs into float32 and keeps the rest as bytes, refusing values that must not reach the model.

    Refused are PARAMETERs that are not finite or beyond +-1e30 (with the codec FINITE: not finite), the illegal -128
    and illegal scales of INT8_BLOCK, values of floating-point BUFFERs and CONSTANTs that are not finite, and bytes of
    bool ones that are not 0 or 1.

    Args:
        payload: the format.
        parameters: where PARAMETERs go: float32, one dimension, contiguous, `payload.layout.parameter_count` elements.
        rest: where the bytes of what follows go: `payload.rest_bytes` writable bytes.
        codec: what decodes; wire_kernels.py has a faster one.

    Raises:
        SizeMismatchError: `parameters` or `rest` is not of the payload's size.
    """

    def __init__(
        self, payload: PayloadFormat, parameters: NDArray[np.float32], rest: memoryview, codec: Codec = NUMPY
    ) -> None:
        super().__init__(payload)
        self._decode = codec.decode
        self._judge_values = codec.judge
        self._parameters = check_parameters(payload, parameters)
        self._rest = check_bytes(rest, payload.rest_bytes, "rest")

    def _take(self, start: int, stop: int, data: memoryview) -> None:
        boundary = self.payload.parameter_bytes
        middle = min(max(start, boundary), stop)
        if start < middle:
            self._take_parameters(start, middle, data[: middle - start])
        if middle < stop:
            self._take_rest(middle, stop, data[middle - start :])

    def _place(self, start: int, stop: int) -> memoryview | None:
        if self.payload.wire_type is not WireType.FLOAT32 or stop > self.payload.parameter_bytes:
            return None
        return self._parameters.view(np.uint8).data[start:stop]

    def _judge(self, start: int, stop: int) -> None:
        elements = self.payload.parameter_elements(start, stop)
        self._refuse(elements, self._judge_values(self._parameters[elements]))

    def _take_parameters(self, start: int, stop: int, data: memoryview) -> None:
        elements = self.payload.parameter_elements(start, stop)
        self._refuse(elements, self._decode(self.payload.wire_type, data, self._parameters[elements]))

    def _refuse(self, elements: slice, bad: BadElement | None) -> None:
        if bad is not None:
            tensor, index = self.payload.layout.locate_parameter(elements.start + bad.position)
            raise _bad_value(tensor, index, bad.problem)

    def _take_rest(self, start: int, stop: int, data: memoryview) -> None:
        boundary = self.payload.parameter_bytes
        into = np.frombuffer(self._rest[start - boundary : stop - boundary], np.uint8)
        np.copyto(into, np.frombuffer(data, np.uint8))
        check_rest(self.payload, start, into)


def check_rest(payload: PayloadFormat, start: int, data: NDArray[np.uint8]) -> None:
    """Raise BadValueError if `data`, which lies at the border `start` behind the PARAMETERs, holds an illegal value."""
    for region in payload.regions_between(start, start + data.size):
        bad = _first_bad(region, data[region.start - start : region.stop - start])
        if bad is not None:
            tensor, index = payload.locate_rest(region.start + bad * region.unit)
            problem = "is neither 0 nor 1" if region.element_type is ElementType.BOOL else "is not finite"
            raise _bad_value(tensor, index, problem)


def _bad_value(tensor: TensorSpec, index: int, problem: str) -> BadValueError:
    return BadValueError(
        f"{tensor.kind.value} {tensor.name!r}, element {index}, {problem}: skip steps whose values are not finite"
    )


# Types that have values which are not finite and that NumPy knows.
_FLOAT_TYPES = {ElementType.FLOAT16: "<f2", ElementType.FLOAT32: "<f4", ElementType.FLOAT64: "<f8"}


def _first_bad(region: Region, data: NDArray[np.uint8]) -> int | None:
    """Index of the first illegal element of `data`, bytes of the region's type, at any alignment."""
    if region.element_type in _FLOAT_TYPES:
        good = np.isfinite(data.view(_FLOAT_TYPES[region.element_type]))
    elif region.element_type is ElementType.BFLOAT16:
        good = (data.view("<u2") & 0x7F80) != 0x7F80
    elif region.element_type is ElementType.BOOL:
        good = data <= 1
    else:
        return None
    return None if good.all() else int(np.argmin(good))
