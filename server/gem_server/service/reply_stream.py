"""Streaming a snapshot to a worker: header, chunks, footer, straight from the arrays."""

from typing import Protocol

from gemps.framing import before_chunk
from gemps.v1 import transfer_pb2

from gem_core import PayloadFormat, Splitter
from gem_core.wire_kernels import COMPILED
from gem_server.flow.reading import Reader
from gem_server.service.answering import Context
from gem_server.service.commit_connection import CommitConnection


class HasFooter(Protocol):
    """A message that can end a payload."""

    footer: transfer_pb2.Footer

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Its bytes."""


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
    head: bytes,
    last: HasFooter,
    chunk_field: int,
    chunk_bytes: int,
    offset: int = 0,
) -> int:
    """Stream the payload from `offset` on, and close the reader; returns the bytes of tensors sent.

    `head` (a serialised message) travels with the first chunk; `last` is an empty message of the same type, whose
    footer travels with the last one. Raises SUPERSEDED when a newer call takes the snapshot away.
    """
    rest = reader.buffers + constants if payload.with_constants else reader.buffers
    splitter = Splitter(payload, reader.parameters, memoryview(rest), chunk_bytes, offset, COMPILED)
    try:
        reader.check()
        for start, data in splitter:  # encoded, summed and copied one after the other, while it is in the cache
            if start + len(data) == payload.byte_count:
                head += _footer(last, payload, splitter)
            await _write(context, before_chunk(head, chunk_field, start, len(data)), data)
            reader.check()
            head = b""
        if head:
            await context.write(head + _footer(last, payload, splitter))
    finally:
        reader.close()
    return payload.byte_count - offset


async def _write(context: Context, head: bytes, data: memoryview) -> None:
    if isinstance(context, CommitConnection):
        await context.write(head, data)  # from where it lies
    else:
        await context.write(b"".join((head, data)))


def _footer(last: HasFooter, payload: PayloadFormat, splitter: Splitter) -> bytes:
    last.footer.byte_count = payload.byte_count
    last.footer.chunk_count = splitter.chunk_count
    last.footer.crc32c = splitter.crc32c
    return last.SerializeToString()
