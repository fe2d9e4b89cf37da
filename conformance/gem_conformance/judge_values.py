"""Judges payloads: the chunks and the footer as they come, then all values, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gemps.v1 import transfer_pb2
from numpy.typing import NDArray

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.state import decoded
from gem_core.checksum import crc32c
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_core.wire_types import BLOCKS, WireType, encode

__all__ = ["Expected", "Mistake", "Upload", "judge_values", "name_of"]


class Upload:
    """A payload that is coming in, in chunks and a footer.

    Attributes:
        received: the bytes that came so far.
        is_complete: whether all bytes came, and a footer that matches them.
        payload: the format, which determines the number of bytes.
        label: a name for messages, such as "commit 3".
    """

    def __init__(self, payload: PayloadFormat, label: str) -> None:
        self.received = bytearray()
        self.is_complete = False
        self.payload = payload
        self.label = label

    @property
    def has_all_bytes(self) -> bool:
        """Whether all bytes came; the footer may still be missing."""
        return len(self.received) == self.payload.byte_count

    @property
    def crc32c(self) -> int:
        """The CRC32C of the bytes that came so far."""
        return crc32c(bytes(self.received))

    def receive(self, chunk: bytes, footer: transfer_pb2.Footer | None) -> None:
        """Take the chunk and the footer of one message.

        Args:
            chunk: the next bytes; empty if the message has a footer only.
            footer: the footer; None if the message has a chunk only.

        Raises:
            FaultError: the message has neither, the chunk is too long, or the footer comes too early or is wrong.
        """
        if self.is_complete:
            raise self._fault(FaultName.OUT_OF_ORDER, "nothing after the footer", "another part")
        if not chunk and footer is None:
            raise self._fault(FaultName.WRONG_CHUNK, "chunks of at least 1 byte", "a message without any part")
        self._receive_chunk(chunk)
        if footer is not None:
            self._receive_footer(footer)

    def _receive_chunk(self, chunk: bytes) -> None:
        if len(chunk) > MAX_CHUNK_BYTES:
            expected = f"chunks of at most {MAX_CHUNK_BYTES} bytes"
            raise self._fault(FaultName.WRONG_CHUNK, expected, f"one of {len(chunk)} bytes")
        self.received += chunk
        if len(self.received) > self.payload.byte_count:
            expected = f"{self.payload.byte_count} bytes in all"
            raise self._fault(FaultName.WRONG_CHUNK, expected, f"a chunk that ends at {len(self.received)}")

    def _receive_footer(self, footer: transfer_pb2.Footer) -> None:
        if not self.has_all_bytes:
            expected = f"{self.payload.byte_count} bytes before the footer"
            raise self._fault(FaultName.WRONG_SIZE, expected, f"the footer after {len(self.received)} bytes")
        if footer.crc32c != self.crc32c:
            expected = f"CRC32C {self.crc32c:#010x} of the bytes that were sent"
            raise self._fault(FaultName.WRONG_CHECKSUM, expected, f"{footer.crc32c:#010x} in the footer")
        self.is_complete = True

    def missing_part(self, came: str) -> FaultError:
        """Return the fault of a payload that does not continue; `came` says what came instead of its next part."""
        if self.has_all_bytes:
            expected = f"a footer after all {self.payload.byte_count} bytes"
            return self._fault(FaultName.NO_FOOTER, expected, came)
        expected = f"further chunks after {len(self.received)} of {self.payload.byte_count} bytes"
        return self._fault(FaultName.OUT_OF_ORDER, expected, came)

    def _fault(self, name: FaultName, expected: str, came: str) -> FaultError:
        return FaultError(name, f"{self.label}: {expected}", came, Place.TRANSFER)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A known mistake, and the values that it leads to, so that a fault can explain what the worker did wrong.

    Attributes:
        name: the fault.
        right: what a correct worker sends, for messages.
        wrong: what a worker with this mistake sends, for messages.
        place: the file that has the rule.
        parameters: the PARAMETERs that it leads to (float32, one-dimensional, before they are encoded).
    """

    name: FaultName
    right: str
    wrong: str
    place: Place
    parameters: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a payload should contain.

    Attributes:
        parameters: all PARAMETERs (float32, one-dimensional, before they are encoded).
        rest: the bytes of the BUFFERs, which follow them.
        place: the file that has the rule, for wrong values without a known mistake.
        mistakes: known mistakes, to compare wrong PARAMETERs with.
    """

    parameters: NDArray[np.float32]
    rest: bytes
    place: Place
    mistakes: Sequence[Mistake] = ()


def judge_values(payload: PayloadFormat, data: bytes, expected: Expected, what: str) -> None:
    """Compare a complete payload with what it should contain, bit for bit, except that -0 may stand for 0.

    Args:
        payload: the format of the payload.
        data: all of its bytes.
        expected: what they should encode.
        what: a name of the payload for messages, such as "commit 3".

    Raises:
        FaultError: they differ. It names the first element that does, and the mistake if it is a known one.
    """
    middle = payload.parameter_bytes
    _judge_parameters(payload, data[:middle], expected, what)
    rest = data[middle:]
    if rest != expected.rest:
        offset = next(index for index, pair in enumerate(zip(rest, expected.rest, strict=True)) if pair[0] != pair[1])
        spec, element = payload.locate_rest(middle + offset)
        raise FaultError(
            FaultName.WRONG_BUFFERS,
            f"{what}: {spec.kind.value} {spec.name!r} as it was received last, byte {expected.rest[offset]:#04x} "
            f"in element {element}",
            f"byte {rest[offset]:#04x}",
            Place.CONFORMANCE,
        )


def _judge_parameters(payload: PayloadFormat, came: bytes, expected: Expected, what: str) -> None:
    wire_type = payload.wire_type
    right = bytes(encode(wire_type, expected.parameters))
    if _same(wire_type, came, right):
        return
    wanted, found = _first_difference(payload, came, right)
    if wire_type is WireType.BFLOAT16 and came == _truncated(expected.parameters):
        raise FaultError(
            FaultName.TRUNCATING_BFLOAT16,
            f"{what}: bfloat16 rounded half to even: {wanted}",
            f"the upper half of float32 as it is: {found}",
            Place.TRANSFER,
        )
    for one in expected.mistakes:
        if _same(wire_type, came, bytes(encode(wire_type, one.parameters))):
            raise FaultError(one.name, f"{what}: {one.right}: {wanted}", f"{one.wrong}: {found}", one.place)
    raise FaultError(FaultName.WRONG_VALUES, f"{what}: {wanted}", found, expected.place)


def _same(wire_type: WireType, came: bytes, right: bytes) -> bool:
    if came == right:
        return True
    if wire_type in BLOCKS:
        return False
    return bool(np.array_equal(_values(wire_type, came), _values(wire_type, right)))  # -0 equals 0


def _values(wire_type: WireType, data: bytes) -> NDArray[np.float32]:
    return decoded(wire_type, data, len(data) // wire_type.unit_bytes)


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
    return f"{name_of(payload, element)} = {float(wanted[element])!r}", f"{float(found[element])!r}"


def name_of(payload: PayloadFormat, element: int) -> str:
    """Return a name for an element of the concatenated PARAMETERs, such as "element 20 of 'weight'"."""
    spec, index = payload.layout.locate_parameter(element)
    return f"element {index} of {spec.name!r}"
