"""Judges payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gemps.v1 import transfer_pb2
from numpy.typing import NDArray

from gem_conformance.faults import FaultError, FaultName, Place
from gem_core.checksum import crc32c
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_core.wire_types import BLOCKS, WireType, decode, encode

__all__ = ["Expected", "Mistake", "Upload", "judge_values"]


class Upload:
    """Incoming payload."""

    def __init__(self, payload: PayloadFormat, what: str) -> None:
        self.received = bytearray()
        self.is_complete = False
        self.payload = payload
        self._what = what

    @property
    def has_all_bytes(self) -> bool:
        """Whether all bytes arrived."""
        return len(self.received) == self.payload.byte_count

    @property
    def crc32c(self) -> int:
        """CRC32C of the received bytes."""
        return crc32c(bytes(self.received))

    def receive(self, chunk: bytes, footer: transfer_pb2.Footer | None) -> None:
        """Take a chunk (empty: none), then a footer. Raises FaultError."""
        if self.is_complete:
            raise self._fault(FaultName.OUT_OF_ORDER, "nothing behind the footer", "another part")
        if chunk:
            self._receive_chunk(chunk)
        if footer is not None:
            self._receive_footer(footer)

    def _receive_chunk(self, chunk: bytes) -> None:
        end = len(self.received) + len(chunk)
        if len(chunk) > MAX_CHUNK_BYTES:
            raise self._fault(
                FaultName.WRONG_CHUNK, f"chunks of at most {MAX_CHUNK_BYTES} bytes", f"one of {len(chunk)} bytes"
            )
        if end > self.payload.byte_count:
            raise self._fault(
                FaultName.WRONG_CHUNK,
                f"{self.payload.byte_count} bytes in all",
                f"a chunk that ends at {end}",
            )
        self.received += chunk

    def _receive_footer(self, footer: transfer_pb2.Footer) -> None:
        received = len(self.received)
        if received != self.payload.byte_count:
            raise self._fault(
                FaultName.WRONG_SIZE,
                f"{self.payload.byte_count} bytes before the footer",
                f"the footer behind {received} bytes",
            )
        if footer.crc32c != self.crc32c:
            raise self._fault(
                FaultName.WRONG_CHECKSUM,
                f"CRC32C {self.crc32c:#010x} of the bytes that were sent",
                f"{footer.crc32c:#010x} in the footer",
            )
        self.is_complete = True

    def no_footer(self, came: str) -> FaultError:
        """Fault for a missing footer."""
        return self._fault(FaultName.NO_FOOTER, f"a footer behind all {self.payload.byte_count} bytes", came)

    def _fault(self, name: FaultName, expected: str, came: str) -> FaultError:
        return FaultError(name, f"{self._what}: {expected}", came, Place.CHUNKS)


@dataclass(frozen=True, slots=True)
class Mistake:
    """Recognisable wrong parameters.

    `parameters`: float32, one-dimensional, before encoding.
    """

    name: FaultName
    right: str
    wrong: str
    place: Place
    parameters: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected payload; `parameters`: as in Mistake; `rest`: bytes after the PARAMETERs."""

    parameters: NDArray[np.float32]
    rest: bytes
    place: Place
    mistakes: Sequence[Mistake] = ()


def judge_values(payload: PayloadFormat, data: bytes, expected: Expected, what: str) -> None:
    """Raise a FaultError unless `data` is bitwise as expected (0 may be -0)."""
    middle = payload.parameter_bytes
    came, rest = data[:middle], data[middle:]
    wire_type = payload.wire_type
    right = bytes(encode(wire_type, expected.parameters))
    if not _same(wire_type, came, right):
        if wire_type is WireType.BFLOAT16 and came == _truncated(expected.parameters):
            raise FaultError(
                FaultName.TRUNCATING_BFLOAT16,
                f"{what}: bfloat16 rounded half to even: {_first_difference(payload, came, right)[0]}",
                f"the upper half of float32 as it is: {_first_difference(payload, came, right)[1]}",
                Place.PAYLOADS,
            )
        wanted, found = _first_difference(payload, came, right)
        for one in expected.mistakes:
            if _same(wire_type, came, bytes(encode(wire_type, one.parameters))):
                raise FaultError(one.name, f"{what}: {one.right}: {wanted}", f"{one.wrong}: {found}", one.place)
        place = expected.place if wire_type is WireType.FLOAT32 else Place.PAYLOADS
        raise FaultError(FaultName.WRONG_VALUES, f"{what}: {wanted}", found, place)
    if rest != expected.rest:
        offset = next(index for index, pair in enumerate(zip(rest, expected.rest, strict=True)) if pair[0] != pair[1])
        spec, element = payload.locate_rest(middle + offset)
        raise FaultError(
            FaultName.WRONG_BUFFERS,
            f"{what}: {spec.kind.value} {spec.name!r} as it was received last, byte {expected.rest[offset]:#04x} "
            f"in element {element}",
            f"byte {rest[offset]:#04x}",
            Place.PAYLOADS,
        )


def _same(wire_type: WireType, came: bytes, right: bytes) -> bool:
    if came == right:
        return True
    if wire_type in BLOCKS:
        return False
    # 0 equals -0.
    return bool(np.array_equal(_values(wire_type, came), _values(wire_type, right)))


def _values(wire_type: WireType, data: bytes) -> NDArray[np.float32]:
    out = np.empty(len(data) // wire_type.unit_bytes, np.float32)
    decode(wire_type, memoryview(data), out)
    return out


def _truncated(values: NDArray[np.float32]) -> bytes:
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def _first_difference(payload: PayloadFormat, came: bytes, right: bytes) -> tuple[str, str]:
    wire_type = payload.wire_type
    if wire_type in BLOCKS:
        offset = next(index for index, pair in enumerate(zip(came, right, strict=True)) if pair[0] != pair[1])
        start = offset - offset % wire_type.unit_bytes
        blocks = [one[start : start + wire_type.unit_bytes].hex() for one in (right, came)]
        return f"block {start // wire_type.unit_bytes} = {blocks[0]}", blocks[1]
    found, wanted = _values(wire_type, came), _values(wire_type, right)
    element = int(np.argmax(~(found == wanted)))
    return f"{_name(payload, element)} = {float(wanted[element])!r}", f"{float(found[element])!r}"


def _name(payload: PayloadFormat, element: int) -> str:
    spec, index = payload.layout.locate_parameter(element)
    return f"element {index} of {spec.name!r}"
