"""Binary format of a log file: a header page, records, zeros.

header   4096 bytes: magic, version, number, id, previous id, clock, layout digest, sizes, CRC32C
record   header (magic, log id, first and last clock, sizes, CRC32C of the body, CRC32C of this header),
         body (JSON entries, BUFFERs, float32 parameters, the rule's vectors)
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.checksum import crc32c, crc32c_of

FILE_MAGIC, RECORD_MAGIC = b"GEMPSLOG", b"GREC"
VERSION = 2
# Without the rule's vectors.
OLDER_VERSIONS = (1,)
# A page confines a torn write.
HEADER_BYTES = 4096
NO_LOG = bytes(16)
# Maximum of a record's header and one commit's JSON.
ENTRY_BYTES = 8192
# Step of a scan.
SEARCHED_BYTES = 1024 * 1024

_FILE = struct.Struct("<8sIQ16s16sQ32sQQ")
_RECORD = struct.Struct("<4s16sQQIQQI")
_CRC = struct.Struct("<I")
RECORD_HEADER_BYTES = _RECORD.size + _CRC.size


class DamageError(Exception):
    """Damage `offset` bytes into the file."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Identifies a file. `clock`: before its first record; `parameter_bytes`: with the vectors."""

    number: int
    log_id: bytes
    previous_id: bytes
    clock: int
    layout_digest: bytes
    parameter_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """A group as read; arrays are views of the file, `end` its end offset. `parameters`: also the vectors."""

    end: int
    last_clock: int
    document: dict[str, Any]
    buffers: memoryview
    parameters: memoryview


def encode_header(header: FileHeader) -> bytes:
    """A file's first page."""
    packed = _FILE.pack(
        FILE_MAGIC,
        VERSION,
        header.number,
        header.log_id,
        header.previous_id,
        header.clock,
        header.layout_digest,
        header.parameter_bytes,
        header.buffer_bytes,
    )
    page = packed.ljust(HEADER_BYTES - _CRC.size, b"\0")
    return page + _CRC.pack(crc32c(page))


def decode_header(data: memoryview) -> FileHeader | None:
    """A file's header; None if unused. Raises DamageError."""
    page = bytes(data[:HEADER_BYTES])
    if not any(page):
        return None
    if len(page) < HEADER_BYTES or crc32c(page[: -_CRC.size]) != _CRC.unpack(page[-_CRC.size :])[0]:
        raise DamageError(0, "its header is damaged")
    magic, version, *fields = _FILE.unpack_from(page)
    if magic != FILE_MAGIC or version not in (VERSION, *OLDER_VERSIONS):
        raise DamageError(0, f"its header is not that of a log of this version of gemps ({VERSION})")
    return FileHeader(*fields)


def encode_record(
    log_id: bytes, first: int, last: int, document: dict[str, Any], buffers: bytes, vectors: Sequence[memoryview]
) -> list[memoryview]:
    """A record's pieces; does not copy `vectors`: parameters, and those of the rule."""
    entries = json.dumps(document).encode()
    body = [memoryview(entries), memoryview(buffers), *vectors]
    size = sum(one.nbytes for one in vectors)
    packed = _RECORD.pack(RECORD_MAGIC, log_id, first, last, len(entries), len(buffers), size, crc32c_of(body))
    return [memoryview(packed + _CRC.pack(crc32c(packed))), *body]


def read_records(data: memoryview, header: FileHeader) -> Iterator[Record]:
    """Yield complete records. Raises DamageError for inconsistent ones, or incomplete ones before others."""
    at, clock = HEADER_BYTES, header.clock
    while True:
        found = _record_at(data, at, header.log_id)
        if found is None:
            if (later := _find_record(data, at + 1, header.log_id)) is not None:
                raise DamageError(at, f"this record is damaged, and there are others behind it, from offset {later}")
            return
        first, last, sizes, body_at = found
        end = body_at + sum(sizes)
        buffers_at = body_at + sizes[0]
        parameters_at = buffers_at + sizes[1]
        document = json.loads(bytes(data[body_at:buffers_at]))
        # Earlier versions could keep vectors of workers behind those of the rule. They are not read.
        fits = sizes[2] == header.parameter_bytes or (sizes[2] > header.parameter_bytes and "moments" in document)
        if first != clock + 1 or last < first or sizes[1] != header.buffer_bytes or not fits:
            raise DamageError(at, f"this record has clocks {first} to {last} where {clock + 1} is next, or other sizes")
        if len(document["entries"]) != last - first + 1:
            raise DamageError(at, f"this record has {len(document['entries'])} entries for clocks {first} to {last}")
        parameters = data[parameters_at : parameters_at + header.parameter_bytes]
        yield Record(end, last, document, data[buffers_at:parameters_at], parameters)
        at, clock = end, last


def has_records(data: memoryview) -> bool:
    """Whether any log's record header is there."""
    return _find_record(data, 0, None) is not None


_Found = tuple[int, int, tuple[int, int, int], int]


def _record_at(data: memoryview, at: int, log_id: bytes) -> _Found | None:
    """(first, last, body sizes, body offset)."""
    found = _record_header(data, at, log_id)
    if found is None:
        return None
    _, _, sizes, body_at = found
    end = body_at + sum(sizes)
    body_crc = _RECORD.unpack_from(data, at)[-1]
    if end > data.nbytes or crc32c_of([data[body_at:end]]) != body_crc:
        return None
    return found


def _record_header(data: memoryview, at: int, log_id: bytes | None) -> _Found | None:
    body_at = at + RECORD_HEADER_BYTES
    if body_at > data.nbytes:
        return None
    magic, written_id, first, last, entries, buffers, parameters, _ = _RECORD.unpack_from(data, at)
    if magic != RECORD_MAGIC or (log_id is not None and written_id != log_id):
        return None
    if crc32c(data[at : at + _RECORD.size]) != _CRC.unpack_from(data, at + _RECORD.size)[0]:
        return None
    return first, last, (entries, buffers, parameters), body_at


def _find_record(data: memoryview, start: int, log_id: bytes | None) -> int | None:
    wanted = RECORD_MAGIC + (log_id or b"")
    for block in range(start, data.nbytes, SEARCHED_BYTES):
        # Matches may extend into the next block.
        piece = bytes(data[block : block + SEARCHED_BYTES + len(wanted) - 1])
        at = piece.find(wanted)
        while at >= 0:
            if _record_header(data, block + at, log_id) is not None:
                return block + at
            at = piece.find(wanted, at + 1)
    return None
