"""Encode and parse messages with a `Chunk` without the copies of generated code.

Callers check order, borders and checksums of chunks.
"""

import functools
from collections.abc import Iterator
from typing import Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from gemps.limits import FIELDS, FIELDS_BYTES, FIRST_MESSAGE_BYTES
from gemps.v1 import transfer_pb2

Buffer: TypeAlias = bytes | bytearray | memoryview
AnyMessage = TypeVar("AnyMessage", bound=Message)

COMMIT_REQUEST_CHUNK = 2
COMMIT_RESPONSE_CHUNK = 4
INITIALIZE_REQUEST_CHUNK = 2
PULL_RESPONSE_CHUNK = 2
_OFFSET, _DATA = 1, 2

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
# Two keys and two lengths of a byte.
_LEAST_HEAD_BYTES = 4


class FramingError(ValueError):
    """The bytes are no protobuf message of the expected shape. Not retryable."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"not a message of this contract ({problem}): use code generated from the protos")


def before_chunk(rest: bytes, field: int, offset: int, size: int) -> bytes:
    """The bytes before a chunk's data, which ends the message; `rest`: serialised other fields."""
    return rest + _chunk_head(field, offset, size)


class HasFooter(Protocol):
    """Message that can begin and end a payload."""

    footer: transfer_pb2.Footer

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Serialise."""


class Chunks(Protocol):
    """A payload's chunks (offset, data), with count and CRC32C so far."""

    chunk_count: int
    crc32c: int

    def __iter__(self) -> Iterator[tuple[int, memoryview]]: ...


def payload_messages(
    chunks: Chunks, field: int, byte_count: int, first: HasFooter
) -> Iterator[tuple[bytes, memoryview, bool]]:
    """Yield (bytes before the chunk's data, data, is_last) for each message of a payload.

    Each is valid until the next one is requested. `first`: the first message's other fields; the last one gets the
    footer.
    """
    message: HasFooter | None = first
    end = -1
    for offset, data in chunks:
        end = offset + len(data)
        is_last = end == byte_count
        if is_last:
            message = message or type(first)()
            _put_footer(message.footer, chunks, byte_count)
        head = _chunk_head(field, offset, len(data))
        yield head if message is None else message.SerializeToString() + head, data, is_last
        message = None
    if end != byte_count:  # no chunks
        _put_footer(first.footer, chunks, byte_count)
        yield first.SerializeToString(), memoryview(b""), True


def _put_footer(footer: transfer_pb2.Footer, chunks: Chunks, byte_count: int) -> None:
    footer.byte_count = byte_count
    footer.chunk_count, footer.crc32c = chunks.chunk_count, chunks.crc32c


# A model's chunks are the same in each commit: up to 1 GiB in chunks of 1 MiB.
@functools.lru_cache(maxsize=1024)
def _chunk_head(field: int, offset: int, size: int) -> bytes:
    """Return the bytes of submessage `field`, a chunk, before its data."""
    return _make_chunk_head(field, offset, size)


def _make_chunk_head(field: int, offset: int, size: int) -> bytes:
    head = bytearray()
    if offset:
        head.append(_OFFSET << 3 | _VARINT)
        _put_varint(head, offset)
    if size:
        head.append(_DATA << 3 | _LENGTH_DELIMITED)
        _put_varint(head, size)
    message = bytearray((field << 3 | _LENGTH_DELIMITED,))
    _put_varint(message, len(head) + size)
    return bytes(message + head)


@functools.lru_cache(maxsize=1024)
def _lone_chunk_head(field: int, offset: int, size: int) -> bytes:
    """Return the same of a chunk that is the only field of a message of `size` bytes; empty if none has this size."""
    if size <= _LEAST_HEAD_BYTES:
        return b""
    # The head of more data is at least as long, and each of the two lengths in it may be a byte too long.
    most = len(_make_chunk_head(field, offset, size - _LEAST_HEAD_BYTES))
    for count in range(most, most - 3, -1):
        head = _make_chunk_head(field, offset, size - count) if count < size else b""
        if len(head) == count:
            return head
    return b""


def split_message(
    kind: type[AnyMessage], message: Buffer, field: int, limit: int = FIELDS_BYTES, *, expected: int = 0
) -> tuple[AnyMessage, int, Buffer | None]:
    """The parsed fields (maybe with the chunk), chunk offset and chunk data or None.

    Does not copy a last chunk of `expected` bytes. Raises FramingError as `split_chunk`, or if other fields exceed
    `limit`.
    """
    if expected and (found := _split_expected(kind, message, field, expected, limit)) is not None:
        return found
    if len(message) <= FIRST_MESSAGE_BYTES:
        # Eight times faster than `split_chunk`, which judges unusual encodings (the size differs).
        try:
            parsed = kind.FromString(bytes(message))
        except DecodeError:
            parsed = None
        if parsed is not None and parsed.ByteSize() == len(message):
            chunk = parsed.chunk if parsed.HasField("chunk") else None  # type: ignore[attr-defined]
            data = None if chunk is None else chunk.data
            _check_fields_bytes(kind, len(message) - len(data or b""), limit)
            return parsed, 0 if chunk is None else chunk.offset, data
    rest, offset, view = split_chunk(message, field)
    return parse_fields(kind, rest, limit), offset, view


def _split_expected(
    kind: type[AnyMessage], message: Buffer, field: int, size: int, limit: int
) -> tuple[AnyMessage, int, Buffer] | None:
    """None unless the message ends with such a chunk."""
    head = _chunk_head(field, 0, size)
    data = len(message) - size
    start = data - len(head)
    if start < 0 or data > limit or message[start:data] != head:
        return None
    try:
        parsed = kind.FromString(bytes(message[:start]))
    except DecodeError:
        return None
    is_usual = parsed.ByteSize() == start and not parsed.HasField("chunk")
    return (parsed, 0, memoryview(message)[data:]) if is_usual else None


def parse_fields(kind: type[AnyMessage], fields: bytes, limit: int = FIELDS_BYTES) -> AnyMessage:
    """Parse a message without its chunk. Raises FramingError."""
    _check_fields_bytes(kind, len(fields), limit)
    try:
        return kind.FromString(fields)
    except DecodeError:
        raise FramingError(f"not a {kind.DESCRIPTOR.full_name}") from None


def split_chunk(message: Buffer, field: int) -> tuple[bytes, int, memoryview | None]:
    """Serialised other fields, chunk offset and a view of its data or None. Raises as `split_field` does."""
    rest, chunk = split_field(message, field)
    return (rest, 0, None) if chunk is None else (rest, *_chunk(chunk))


def split_field(message: Buffer, field: int) -> tuple[bytes, memoryview | None]:
    """Serialised other fields and a view of submessage `field` or None.

    Raises FramingError for malformed bytes, a repeated `field` or more than FIELDS fields.
    """
    view = memoryview(message)
    end = len(message)
    rest: list[memoryview] = []
    found: memoryview | None = None
    position = 0
    while position < end:
        _check_fields(len(rest))
        start = position
        number, wire, position = _tag(message, position, end)
        if wire == _LENGTH_DELIMITED and number == field:
            if found is not None:
                raise FramingError(f"field {field} stands there twice: send one chunk, or one layout, a message")
            length, position = _varint(message, position, end)
            if length > end - position:
                raise FramingError(f"field {field} is cut short")
            found = view[position : position + length]
            position += length
        else:
            position = _skip(message, wire, position, end)
            rest.append(view[start:position])
    return bytes(message) if found is None else b"".join(rest), found


def message_head(begin: memoryview, size: int, field: int, expected: int = 0) -> tuple[bytes, int, int]:
    """Parse the beginning of a message of `size` bytes made as by `before_chunk`.

    Returns serialised other fields, chunk offset and position of its data. A message that has nothing but a chunk at
    offset `expected` is recognised without parsing. Raises FramingError for other forms, or if `begin` ends before the
    data.
    """
    head = _lone_chunk_head(field, expected, size)
    if head and begin[: len(head)] == head:
        return b"", expected, len(head)
    rest: list[memoryview] = []
    position, end = 0, len(begin)
    while position < end:
        _check_fields(len(rest))
        start = position
        number, wire, position = _tag(begin, position, end)
        if wire != _LENGTH_DELIMITED or number != field:
            position = _skip(begin, wire, position, end)
            rest.append(begin[start:position])
            continue
        length, position = _varint(begin, position, end)
        is_last = position + length == size
        offset = 0
        number, wire, position = _tag(begin, position, end)
        if number == _OFFSET and wire == _VARINT:
            offset, position = _varint(begin, position, end)
            number, wire, position = _tag(begin, position, end)
        length, position = _varint(begin, position, end)
        if not is_last or (number, wire) != (_DATA, _LENGTH_DELIMITED) or position + length != size:
            break
        return b"".join(rest), offset, position
    raise FramingError("a large message must end with its chunk, whose data must begin within the first bytes")


def count_fields(message: Buffer, path: tuple[int, ...], limit: int) -> int:
    """Count the field at `path` (outermost first), stopping above `limit`, without parsing messages.

    Raises FramingError for malformed bytes or more than FIELDS other fields.
    """
    return _count(message, 0, len(message), path, limit)


def _count(message: Buffer, position: int, end: int, path: tuple[int, ...], limit: int) -> int:
    count = others = 0
    while position < end and count <= limit:
        _check_fields(others)
        number, wire, position = _tag(message, position, end)
        if number != path[0] or len(path) > 1:
            others += 1
        if number == path[0] and wire == _LENGTH_DELIMITED:
            length, position = _varint(message, position, end)
            if length > end - position:
                raise FramingError("a submessage is cut short")
            if len(path) == 1:
                count += 1
            else:
                count += _count(message, position, position + length, path[1:], limit - count)
            position += length
        else:
            position = _skip(message, wire, position, end)
    return count


def _chunk(message: memoryview) -> tuple[int, memoryview]:
    offset = fields = position = 0
    end = len(message)
    data = message[end:]
    while position < end:
        fields += 1
        _check_fields(fields)
        number, wire, position = _tag(message, position, end)
        if number == _OFFSET and wire == _VARINT:
            offset, position = _varint(message, position, end)
        elif number == _DATA and wire == _LENGTH_DELIMITED:
            length, position = _varint(message, position, end)
            if length > end - position:
                raise FramingError("the chunk's data is cut short")
            data = message[position : position + length]
            position += length
        else:
            position = _skip(message, wire, position, end)
    return offset, data


def _check_fields_bytes(kind: type[Message], size: int, limit: int) -> None:
    if size > limit:
        raise FramingError(f"{size} bytes of {kind.DESCRIPTOR.name} besides its chunk, more than {limit}")


def _check_fields(number: int) -> None:
    if number > FIELDS:
        raise FramingError(f"more than {FIELDS} fields")


def _tag(message: Buffer, position: int, end: int) -> tuple[int, int, int]:
    key, position = _varint(message, position, end)
    number = key >> 3
    if number == 0 or key >= 1 << 32:
        raise FramingError("illegal field number")
    return number, key & 7, position


def _skip(message: Buffer, wire: int, position: int, end: int) -> int:
    if wire == _VARINT:
        _, position = _varint(message, position, end)
    elif wire == _LENGTH_DELIMITED:
        length, position = _varint(message, position, end)
        position += length
    elif wire == _FIXED32:
        position += 4
    elif wire == _FIXED64:
        position += 8
    else:
        raise FramingError(f"wire type {wire} is not used by this contract")
    if position > end:
        raise FramingError("a field is cut short")
    return position


def _varint(message: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(_MAX_VARINT_BYTES):
        if position >= end:
            raise FramingError("the message is cut short")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                raise FramingError("a number has more than 64 bits")
            return value, position
        shift += 7
    raise FramingError("a number has more than 64 bits")


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
