"""Encodes and parses messages that have a chunk, without the copies that generated code makes.

A chunk is the field `chunk` (bytes) of a message. The encoders of this module put it last. Other code may put fields
after it, and the parsers of this module accept both. Callers check the sizes and checksums of chunks.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from gemps.limits import FIELDS, FIELDS_BYTES, FIRST_MESSAGE_BYTES
from gemps.v1 import transfer_pb2

Buffer: TypeAlias = bytes | bytearray | memoryview
AnyMessage = TypeVar("AnyMessage", bound=Message)

COMMIT_REQUEST_CHUNK = 3
COMMIT_RESPONSE_CHUNK = 5
INITIALIZE_REQUEST_CHUNK = 3
PULL_RESPONSE_CHUNK = 4

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_TAIL_BYTES = 1 << 10


class FramingError(ValueError):
    """The bytes are no protobuf message of the expected form. Sending them again does not help."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"not a message of this contract ({problem}): use code generated from the protos")


@functools.lru_cache(maxsize=64)
def chunk_head(field: int, size: int) -> bytes:
    """Return the bytes before the data of a chunk that ends its message."""
    head = bytearray((field << 3 | _LENGTH_DELIMITED,))
    _put_varint(head, size)
    return bytes(head)


class HasFooter(Protocol):
    """A message that can begin and end a payload."""

    footer: transfer_pb2.Footer

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Serialise."""


WithFooter = TypeVar("WithFooter", bound=HasFooter)


class Chunks(Protocol):
    """A payload's chunks, with the CRC32C of those that were taken."""

    crc32c: int

    def __iter__(self) -> Iterator[memoryview]: ...


def payload_messages(
    chunks: Chunks,
    field: int,
    byte_count: int,
    first: WithFooter,
    before_last: Callable[[WithFooter], None] | None = None,
) -> Iterator[tuple[bytes, memoryview, bool]]:
    """Yield (bytes before the chunk's data, data, is_last) for each message of a payload.

    Each is valid until the next one is requested. `byte_count` is the size of all these chunks together. `first` has
    the other fields of the first message. The last message gets the footer, and `before_last` may add further fields
    to it.
    """
    message: WithFooter | None = first
    left = byte_count
    for data in chunks:
        left -= len(data)
        if not left:
            message = message or type(first)()
            _put_footer(message.footer, chunks.crc32c)
            if before_last is not None:
                before_last(message)
        head = chunk_head(field, len(data))
        yield head if message is None else message.SerializeToString() + head, data, not left
        message = None
    if not byte_count:  # no chunks
        _put_footer(first.footer, chunks.crc32c)
        if before_last is not None:
            before_last(first)
        yield first.SerializeToString(), memoryview(b""), True


def _put_footer(footer: transfer_pb2.Footer, crc32c: int) -> None:
    footer.SetInParent()  # also where the checksum is 0
    footer.crc32c = crc32c


def split_message(
    kind: type[AnyMessage], message: Buffer, field: int, limit: int = FIELDS_BYTES, *, expected: int = 0
) -> tuple[AnyMessage, Buffer | None]:
    """Parse a message. Returns its fields, which may include the chunk, and the chunk's data or None.

    A chunk of `expected` bytes at the end of the message is not copied. Raises FramingError as `split_chunk`, or if the
    other fields have more than `limit` bytes.
    """
    if expected and (found := _split_expected(kind, message, field, expected, limit)) is not None:
        return found
    if len(message) <= FIRST_MESSAGE_BYTES:
        # This is eight times faster than `split_chunk`, which handles all other encodings (their size differs).
        try:
            parsed = kind.FromString(bytes(message))
        except DecodeError:
            parsed = None
        if parsed is not None and parsed.ByteSize() == len(message):
            data: bytes = parsed.chunk  # type: ignore[attr-defined]
            _check_fields_bytes(kind, len(message) - len(data), limit)
            return parsed, data or None
    rest, view = split_chunk(message, field)
    return parse_fields(kind, rest, limit), view


def _split_expected(
    kind: type[AnyMessage], message: Buffer, field: int, size: int, limit: int
) -> tuple[AnyMessage, Buffer] | None:
    """Do the same for a message that ends with a chunk of `size` bytes. Returns None for any other message."""
    head = chunk_head(field, size)
    data = len(message) - size
    start = data - len(head)
    if start < 0 or data > limit or message[start:data] != head:
        return None
    try:
        parsed = kind.FromString(bytes(message[:start]))
    except DecodeError:
        return None
    is_usual = parsed.ByteSize() == start and not parsed.chunk  # type: ignore[attr-defined]
    return (parsed, memoryview(message)[data:]) if is_usual else None


def parse_fields(kind: type[AnyMessage], fields: bytes, limit: int = FIELDS_BYTES) -> AnyMessage:
    """Parse a message without its chunk. Raises FramingError."""
    _check_fields_bytes(kind, len(fields), limit)
    try:
        return kind.FromString(fields)
    except DecodeError:
        raise FramingError(f"not a {kind.DESCRIPTOR.full_name}") from None


def split_chunk(message: Buffer, field: int) -> tuple[bytes, memoryview | None]:
    """Return the other fields, serialised, and a view of the chunk's data or None. Raises as `split_field`."""
    rest, chunk = split_field(message, field)
    return rest, chunk or None


def split_field(message: Buffer, field: int) -> tuple[bytes, memoryview | None]:
    """Return the other fields, serialised, and a view of `field` (bytes or a submessage) or None.

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


class MessageHead(NamedTuple):
    """Where a chunk's data is in a message: `count` bytes from `start` on. `fields` are those before it, serialised."""

    fields: bytes
    start: int
    count: int


def message_head(begin: memoryview, size: int, field: int) -> MessageHead:
    """Parse the beginning of a large message of `size` bytes, up to its chunk's data.

    Raises FramingError if `begin` ends before the data, or the data reaches beyond the message.
    """
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
        if position + length > size:
            raise FramingError(f"field {field} is cut short")
        return MessageHead(b"".join(rest), position, length)
    raise FramingError("a large message must have a chunk, whose data begins within the first bytes")


def tail_space(size: int) -> memoryview:
    """Return memory for the fields after a chunk. Raises FramingError if `size` is more than they can have."""
    if size > _MAX_TAIL_BYTES:
        raise FramingError(f"{size} bytes behind the chunk, more than {_MAX_TAIL_BYTES}")
    return memoryview(bytearray(size))


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
