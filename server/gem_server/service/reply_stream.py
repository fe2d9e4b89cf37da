"""Streaming a snapshot to a worker: header, chunks, footer, straight from the arrays."""

from typing import Protocol

from gemps.framing import Buffer, HasFooter, payload_messages
from gemps.v1 import transfer_pb2

from gem_core import PayloadFormat, Splitter
from gem_core.wire_kernels import COMPILED
from gem_server.flow.reading import Reader


class PayloadWriter(Protocol):
    """Sends the messages of a payload to one peer."""

    async def write(self, head: bytes, data: Buffer, *, last: bool) -> None:
        """Send a message in two pieces; `last`: it holds the footer. Returns when the transport has taken it."""


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
    writer: PayloadWriter,
    reader: Reader,
    payload: PayloadFormat,
    constants: bytes,
    *,
    head: HasFooter,
    chunk_field: int,
    chunk_bytes: int,
    offset: int = 0,
) -> int:
    """Stream the payload from `offset` on, and close the reader; returns the bytes of tensors sent.

    `head` travels with the first chunk, and a footer in a message of its type with the last one. Raises SUPERSEDED when
    a newer call takes the snapshot away.
    """
    rest = reader.buffers + constants if payload.with_constants else reader.buffers
    splitter = Splitter(payload, reader.parameters, memoryview(rest), chunk_bytes, offset, COMPILED)
    try:
        reader.check()
        # Chunks are encoded, summed and sent one after the other, while each is in the cache.
        for message, data, last in payload_messages(splitter, chunk_field, payload.byte_count, head):
            await writer.write(message, data, last=last)
            reader.check()
    finally:
        reader.close()
    return payload.byte_count - offset
