"""Reassembles and validates payloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gem_core.checksum import crc32c
from gem_core.chunking.memory import check_bytes, check_parameters
from gem_core.errors import BadValueError, ChecksumError, ChunkError, CoreError, SizeMismatchError
from gem_core.layout import ElementType, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.thresholds import SCRATCH_BYTES
from gem_core.wire_types import NUMPY, BadElement, Codec, WireType

_FLOAT32_BYTES = 4
_NOTHING = memoryview(b"")

Buffer: TypeAlias = bytes | bytearray | memoryview
FirstBadValue: TypeAlias = Callable[[NDArray[np.float32]], BadElement | None]

__all__ = ["Assembler", "DecodingAssembler", "RawAssembler", "check_rest", "first_non_finite"]


class Assembler(ABC):
    """Takes a payload's chunks in order, then its footer, into the caller's memory. Not thread-safe.

    Pass whole chunks to `add`, or receive them piecewise: call `begin`, then write into `space` and call `filled`,
    until `space` is empty. After an error or `finish`, chunks raise ChunkError until `restart`.

    A subclass decodes the bytes. Those of the payload's first part, [0, `len(direct)`), are received directly into
    their place, `direct`, and the others into scratch memory. A chunk may end within an element or block, whose bytes
    then stay where they were received until the next chunk has the others.

    Attributes:
        space: memory for the next bytes of the chunk that was begun. Empty when the chunk is complete.
        received: number of bytes that are decoded, which ends at a border.
        crc32c: CRC32C of the bytes [0, received) as they were sent.
        complete: whether `finish` succeeded. Do not use the data before.
    """

    # Finds a value to refuse among the float32 values in `direct`. None if no value there is refused.
    _first_bad_value: FirstBadValue | None = None

    def __init__(self, payload: PayloadFormat, direct: memoryview, start: int = 0, crc32c: int = 0) -> None:
        if start and not payload.is_border(start):
            raise ChunkError(f"cannot continue at offset {start}: it is not a border of this payload; start from 0")
        self.payload = payload
        self._direct = direct
        self._direct_bytes = len(direct)
        self._scratch = _NOTHING  # allocated when it is needed
        self.restart(start, crc32c)

    def restart(self, start: int = 0, crc32c: int = 0) -> None:
        """Start a transfer with bytes [0, start) in place."""
        self.received = self._written = self._end = start
        self.space = _NOTHING
        self.crc32c = crc32c
        self.complete = False
        self._refused = ""  # the traceback of an exception would keep the chunk alive

    def add(self, data: Buffer) -> None:
        """Add the next chunk.

        Raises:
            ChunkError: illegal size, or an earlier call failed.
            BadValueError: a value is refused.
        """
        start, end = self._written, self._written + len(data)
        if start != self.received or self.payload.border_at_or_before(min(end, self.payload.byte_count)) != end:
            self.begin(len(data), memoryview(data))
            return
        self._check_open()
        try:
            self.payload.check_chunk(start, end)
            self._write(start, end, memoryview(data))
        except CoreError as error:
            self._refused = str(error)
            raise
        self.crc32c = crc32c(data, self.crc32c)
        self.received = self._written = self._end = end

    def begin(self, count: int, data: memoryview = _NOTHING) -> None:
        """Begin a chunk of `count` bytes, of which the first are `data`.

        Raises:
            ChunkError: as `add`.
            BadValueError: as `add`.
        """
        end = self._written + count
        if self._refused or self.complete:
            self._check_open()
        try:
            self.payload.check_chunk(self._written, end)
        except ChunkError as error:
            self._refused = str(error)
            raise
        self._end = end
        self.space = self._direct[self._written : end] or self._scratch_space()
        while count := min(len(data), len(self.space)):
            self.space[:count] = data[:count]
            if count == len(self.space):
                self.filled(count)
            else:  # checked with the bytes that follow
                self._written += count
                self.space = self.space[count:]
            data = data[count:]

    def filled(self, count: int) -> None:
        """Note that `count` bytes were written into `space`, which moves on. Raises BadValueError as `add`."""
        start = self.received
        self._written += count
        border = self.payload.border_at_or_before(self._written)
        if border > start:
            is_direct = border <= self._direct_bytes
            data = self._direct[start:border] if is_direct else self._scratch[: border - start]
            self.crc32c = crc32c(data, self.crc32c)
            try:
                if not is_direct:
                    self._write(start, border, data)
                elif self._first_bad_value is not None:
                    bad = self._first_bad_value(np.frombuffer(data, np.float32))
                    if bad is not None:
                        self._refuse(start // _FLOAT32_BYTES, bad)
            except CoreError as error:
                self._refused = str(error)
                raise
            self.received = border
            if not is_direct and (left := self._written - border):  # of a torn element or block
                self._scratch[:left] = bytes(self._scratch[border - start : border - start + left])
        if self._written == self._end:
            self.space = _NOTHING
        else:
            self.space = self._direct[self._written : self._end] or self._scratch_space()

    def _scratch_space(self) -> memoryview:
        if not self._scratch:
            self._scratch = memoryview(bytearray(min(SCRATCH_BYTES, self.payload.byte_count)))
        return self._scratch[self._written - self.received : self._end - self.received]

    def finish(self, crc32c: int) -> None:
        """Check the footer.

        Raises:
            SizeMismatchError: bytes are missing.
            ChecksumError: the bytes differ.
            ChunkError: an earlier call failed, or the payload is complete.
        """
        self._check_open()
        try:
            self._check_footer(crc32c)
        except CoreError as error:
            self._refused = str(error)
            raise
        self.complete = True

    @abstractmethod
    def _write(self, start: int, stop: int, data: memoryview) -> None:
        """Decode bytes [start, stop), two borders, from `data`. Raises BadValueError."""

    def _refuse(self, first: int, bad: BadElement) -> NoReturn:
        tensor, index = self.payload.layout.locate_parameter(first + bad.position)
        raise _bad_value(tensor, index, bad.problem)

    def _check_footer(self, crc32c: int) -> None:
        expected = self.payload.byte_count
        if self._written != expected:
            raise SizeMismatchError(f"the footer came after {self._written} of {expected} bytes: send all chunks first")
        if crc32c != self.crc32c:
            raise ChecksumError(
                f"CRC32C {self.crc32c:#010x} of the received bytes differs from the footer's {crc32c:#010x}: "
                "the payload was damaged on its way; send it again (if that fails, too: is it CRC-32C, Castagnoli's?)"
            )

    def _check_open(self) -> None:
        if self._refused:
            raise ChunkError(f"this transfer was refused before ({self._refused}): start a new one")
        if self.complete:
            raise ChunkError("this transfer is complete: start a new one")


class RawAssembler(Assembler):
    """Stores the bytes as they were sent in `into`, which has `payload.byte_count` bytes.

    To resume a transfer, pass the earlier assembler's `received` as `start`, and its `crc32c`. Raises SizeMismatchError
    or ChunkError.
    """

    def __init__(self, payload: PayloadFormat, into: memoryview, start: int = 0, crc32c: int = 0) -> None:
        super().__init__(payload, check_bytes(into, payload.byte_count, "into"), start, crc32c)

    def _write(self, start: int, stop: int, data: memoryview) -> None:
        # Assigning to the memoryview would hold the GIL.
        np.copyto(np.frombuffer(self._direct[start:stop], np.uint8), np.frombuffer(data, np.uint8))


class DecodingAssembler(Assembler):
    """Decodes PARAMETERs into contiguous float32 `parameters`, and stores the other bytes in `rest`.

    Refuses PARAMETERs that are not finite or beyond +-1e30 (with codec FINITE only those that are not finite), illegal
    blocks, and bools other than 0 and 1. The caller decides whether a BUFFER may have values that are not finite.

    Attributes:
        is_rest_finite: whether no floating-point value in `rest` was infinite or NaN so far.

    Raises:
        SizeMismatchError: wrong size of `parameters` or `rest`.
    """

    def __init__(
        self, payload: PayloadFormat, parameters: NDArray[np.float32], rest: memoryview, codec: Codec = NUMPY
    ) -> None:
        self._decode = codec.decode
        self._first_bad_value = codec.first_bad_value
        self._parameters = check_parameters(payload, parameters)
        self._rest = check_bytes(rest, payload.rest_bytes, "rest")
        in_place = payload.wire_type is WireType.FLOAT32
        super().__init__(payload, parameters.view(np.uint8).data if in_place else _NOTHING)

    @override
    def restart(self, start: int = 0, crc32c: int = 0) -> None:
        super().restart(start, crc32c)
        self.is_rest_finite = True

    def multiply(self, scale: float) -> None:
        """Multiply the PARAMETERs of the complete payload by a finite number, as float32 rounds the products.

        Raises BadValueError if a product is refused.
        """
        with np.errstate(over="ignore"):
            np.multiply(self._parameters, np.float32(scale), out=self._parameters)
        if abs(scale) > 1 and self._first_bad_value is not None:
            bad = self._first_bad_value(self._parameters)
            if bad is not None:
                self._refuse(0, bad)

    def _write(self, start: int, stop: int, data: memoryview) -> None:
        boundary = self.payload.parameter_bytes
        middle = min(max(start, boundary), stop)
        if start < middle:
            self._decode_parameters(start, middle, data[: middle - start])
        if middle < stop:
            self._write_rest(middle, stop, data[middle - start :])

    def _decode_parameters(self, start: int, stop: int, data: memoryview) -> None:
        payload, parameters, first = self.payload, self._parameters, 0
        if start or stop < payload.parameter_bytes:
            elements = payload.parameter_elements(start, stop)
            parameters, first = parameters[elements], elements.start
        bad = self._decode(payload.wire_type, data, parameters)
        if bad is not None:
            self._refuse(first, bad)

    def _write_rest(self, start: int, stop: int, data: memoryview) -> None:
        boundary = self.payload.parameter_bytes
        into = np.frombuffer(self._rest[start - boundary : stop - boundary], np.uint8)
        np.copyto(into, np.frombuffer(data, np.uint8))
        self.is_rest_finite &= check_rest(self.payload, start, into)


def check_rest(payload: PayloadFormat, start: int, data: NDArray[np.uint8]) -> bool:
    """Check `data` after the PARAMETERs, at border `start`.

    Returns whether all floating-point values are finite. Raises BadValueError for a bool other than 0 and 1.
    """
    is_finite = True
    for region in payload.regions_between(start, start + data.size):
        bad = _first_bad(region.element_type, data[region.start - start : region.stop - start])
        if bad is not None and region.element_type is ElementType.BOOL:
            tensor, index = payload.locate_rest(region.start + bad)
            raise _bad_value(tensor, index, "is neither 0 nor 1")
        is_finite &= bad is None
    return is_finite


def first_non_finite(tensor: TensorSpec, data: NDArray[np.uint8]) -> BadValueError | None:
    """Return the error that names the first infinite or NaN element of a BUFFER's bytes; None if all are finite."""
    if not tensor.element_type.is_floating:
        return None
    bad = _first_bad(tensor.element_type, data)
    return None if bad is None else _bad_value(tensor, bad, "is not finite")


def _bad_value(tensor: TensorSpec, index: int, problem: str) -> BadValueError:
    return BadValueError(
        f"{tensor.kind.value} {tensor.name!r}, element {index}, {problem}: skip steps whose values are not finite"
    )


_FLOAT_TYPES = {ElementType.FLOAT16: "<f2", ElementType.FLOAT32: "<f4", ElementType.FLOAT64: "<f8"}


def _first_bad(element_type: ElementType | None, data: NDArray[np.uint8]) -> int | None:
    if element_type in _FLOAT_TYPES:
        good = np.isfinite(data.view(_FLOAT_TYPES[element_type]))
    elif element_type is ElementType.BFLOAT16:
        good = (data.view("<u2") & 0x7F80) != 0x7F80
    elif element_type is ElementType.BOOL:
        good = data <= 1
    else:
        return None
    return None if good.all() else int(np.argmin(good))
