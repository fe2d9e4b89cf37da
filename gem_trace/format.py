"""The format of traces, which are a sequence of little-endian records.

    record   header (magic, JSON size, payload size, CRC32C of both, CRC32C of this header), 24 bytes
             the event as JSON (UTF-8), space-padded to a multiple of 64 bytes
             the payload, zero-padded to a multiple of 64 bytes

Sizes exclude padding.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_core.checksum import crc32c, crc32c_of

FORMAT = "gemps-trace-2"
MAGIC = b"GTRC"
ALIGNMENT = 64

_HEADER = struct.Struct("<4sIQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
_SEARCHED_BYTES = 1024 * 1024


class DamageError(Exception):
    """The trace is damaged at `offset`."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"damaged at offset {offset}: {what}")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Record:
    """An event with its payload. The next record begins at offset `end`."""

    offset: int
    end: int
    event: dict[str, Any]
    payload: memoryview


def why_unreadable(started: Mapping[str, Any]) -> str:
    """Say why this version cannot replay what follows this event `started`. Empty if it can."""
    if started["format"] != FORMAT:
        return f"its format is {started['format']}, this version of gemps reads {FORMAT}"
    if (kind := started.get("precondition", "none")) != "none":  # of development versions before 0.1.0
        return (
            f"its run had --precondition {kind}, which gemps 0.1.0 does not have: read it with the version that "
            "recorded it"
        )
    return ""


def encode(event: dict[str, Any], payload: Sequence[memoryview] = ()) -> list[memoryview]:
    """Return a record in pieces. `payload` (contiguous bytes) is not copied."""
    document = json.dumps(event, separators=(",", ":")).encode()
    size = sum(piece.nbytes for piece in payload)
    packed = _HEADER.pack(MAGIC, len(document), size, crc32c_of(payload, crc32c(document)))
    head = packed + _CRC.pack(crc32c(packed)) + document
    return [
        memoryview(head.ljust(_aligned(len(head)), b" ")),
        *payload,
        memoryview(bytes(_aligned(size) - size)),
    ]


def read_records(data: memoryview, *, check: bool = True) -> Iterator[Record]:
    """Yield complete records, without an incomplete tail.

    `check=False` skips checksums of events and payloads. Raises DamageError.
    """
    at = 0
    while at < data.nbytes:
        record = _record_at(data, at, check=check)
        if record is None:
            if (later := _find(data, at + 1)) is not None:
                raise DamageError(at, f"this record is not as it was written, and there are others from {later} on")
            return
        yield record
        at = record.end


def digest(parameters: NDArray[np.float32], buffers: bytes) -> str:
    """Return the hexadecimal SHA-256 of parameters and BUFFERs."""
    found = hashlib.sha256(parameters.data.cast("B") if parameters.size else b"")
    found.update(buffers)
    return found.hexdigest()


def _record_at(data: memoryview, at: int, *, check: bool) -> Record | None:
    sizes = _sizes_at(data, at)
    if sizes is None:
        return None
    document_size, payload_size, crc = sizes
    payload_at = at + _aligned(HEADER_BYTES + document_size)
    end = payload_at + _aligned(payload_size)
    if end > data.nbytes:
        return None
    document = data[at + HEADER_BYTES : at + HEADER_BYTES + document_size]
    payload = data[payload_at : payload_at + payload_size]
    if check and crc32c_of([document, payload]) != crc:
        return None
    return Record(at, end, json.loads(bytes(document)), payload)


def _sizes_at(data: memoryview, at: int) -> tuple[int, int, int] | None:
    """Return JSON size, payload size and checksum from the header at `at`. None if the header is not valid."""
    if at + HEADER_BYTES > data.nbytes:
        return None
    magic, document, payload, crc = _HEADER.unpack_from(data, at)
    if magic != MAGIC or crc32c(data[at : at + _HEADER.size]) != _CRC.unpack_from(data, at + _HEADER.size)[0]:
        return None
    return document, payload, crc


def _find(data: memoryview, start: int) -> int | None:
    for block in range(_aligned(start), data.nbytes, _SEARCHED_BYTES):
        piece = bytes(data[block : block + _SEARCHED_BYTES + len(MAGIC) - 1])
        at = piece.find(MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0 and _sizes_at(data, block + at) is not None:
                return block + at
            at = piece.find(MAGIC, at + 1)
    return None


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
