"""Streaming a snapshot to a worker: header, chunks, footer, straight from the arrays."""

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from gemps.framing import before_chunk
from gemps.v1 import transfer_pb2

from gem_core import PayloadFormat, Splitter
from gem_core.chunking import encode_whole
from gem_core.wire_kernels import COMPILED
from gem_server.flow.reading import Reader
from gem_server.service.answering import Context
from gem_server.service.commit_connection import CommitConnection


class HasFooter(Protocol):
    """A message that can begin and end a payload."""

    footer: transfer_pb2.Footer

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Its bytes."""


Head = TypeVar("Head", bound=HasFooter)


def put_header(reader: Reader, payload: PayloadFormat, message: transfer_pb2.ParametersHeader, offset: int = 0) -> None:
    """Announce in `message` what `send` is about to stream."""
    message.version.incarnation = reader.version.incarnation
    message.version.clock = reader.version.clock
    message.wire_type = int(payload.wire_type)  # type: ignore[assignment]
    message.byte_count = payload.byte_count
    message.offset = offset
    message.with_constants = payload.with_constants
    message.layout_digest = payload.layout.digest


async def send(
    context: Context,
    reader: Reader,
    payload: PayloadFormat,
    constants: bytes,
    *,
    head: Head,
    chunk_field: int,
    chunk_bytes: int,
    offset: int = 0,
) -> int:
    """Stream the payload from `offset` on, and close the reader; returns the bytes of tensors sent.

    `head` travels with the first chunk, and a footer in a message of its type with the last one. Raises SUPERSEDED when
    a newer call takes the snapshot away.
    """
    rest = reader.buffers + constants if payload.with_constants else reader.buffers
    try:
        reader.check()
        if not offset and 0 < payload.byte_count <= chunk_bytes:
            data, checksum = encode_whole(payload, reader.parameters, rest, COMPILED)
            _put_footer(head.footer, payload, 1, checksum)
            await _write(context, before_chunk(head.SerializeToString(), chunk_field, 0, len(data)), data)
            reader.check()
        else:
            splitter = Splitter(payload, reader.parameters, memoryview(rest), chunk_bytes, offset, COMPILED)
            await _send_chunks(context, reader, splitter, payload, head, chunk_field)
    finally:
        reader.close()
    return payload.byte_count - offset


async def _send_chunks(
    context: Context, reader: Reader, splitter: Splitter, payload: PayloadFormat, head: Head, chunk_field: int
) -> None:
    fields, last = head.SerializeToString(), type(head)()
    for start, data in splitter:  # encoded, summed and copied one after the other, while it is in the cache
        if start + len(data) == payload.byte_count:
            _put_footer(last.footer, payload, splitter.chunk_count, splitter.crc32c)
            fields += last.SerializeToString()
        await _write(context, before_chunk(fields, chunk_field, start, len(data)), data)
        reader.check()
        fields = b""
    if fields:
        _put_footer(last.footer, payload, splitter.chunk_count, splitter.crc32c)
        await context.write(fields + last.SerializeToString())


def _write(context: Context, head: bytes, data: memoryview) -> Awaitable[None]:
    if isinstance(context, CommitConnection):
        return context.write(head, data)  # from where it lies
    return context.write(b"".join((head, data)))


def _put_footer(footer: transfer_pb2.Footer, payload: PayloadFormat, chunk_count: int, checksum: int) -> None:
    footer.byte_count = payload.byte_count
    footer.chunk_count = chunk_count
    footer.crc32c = checksum
