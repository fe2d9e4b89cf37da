"""Streams snapshots to workers."""

from typing import Protocol

from gemps.framing import Buffer, HasFooter, payload_messages
from gemps.v1 import transfer_pb2

from gem_core import PayloadFormat, Splitter
from gem_core.wire_kernels import COMPILED
from gem_server.flow.reader import Reader


class PayloadWriter(Protocol):
    """Sends payload messages."""

    async def write(self, head: bytes, data: Buffer, *, last: bool) -> None:
        """Send a message in two pieces; returns once the transport accepted it."""


def put_header(reader: Reader, payload: PayloadFormat, message: transfer_pb2.ParametersHeader, offset: int = 0) -> None:
    """Write the header of what `send` streams."""
    message.version.incarnation = reader.version.incarnation
    message.version.clock = reader.version.clock
    message.wire_type = int(payload.wire_type)  # type: ignore[assignment]
    message.byte_count = payload.byte_count
    message.offset = offset
    message.layout_digest = payload.layout.digest


async def send(
    writer: PayloadWriter,
    reader: Reader,
    payload: PayloadFormat,
    *,
    head: HasFooter,
    chunk_field: int,
    chunk_bytes: int,
    offset: int = 0,
    head_is_large: bool = False,
) -> int:
    """Stream from `offset`, close the reader; return tensor bytes sent. Raises SUPERSEDED.

    `head` travels with the first chunk, a large one alone.
    """
    splitter = Splitter(payload, reader.parameters, memoryview(reader.buffers), chunk_bytes, offset, COMPILED)
    try:
        reader.check_alive()
        if head_is_large:
            await writer.write(head.SerializeToString(), b"", last=False)
            head = type(head)()
        # Encode, checksum, send by chunk: cache locality.
        for message, data, last in payload_messages(splitter, chunk_field, payload.byte_count, head):
            await writer.write(message, data, last=last)
            reader.check_alive()
    finally:
        reader.close()
    return payload.byte_count - offset
