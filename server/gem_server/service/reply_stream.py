"""Streams snapshots to workers."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from gemps.framing import Buffer, HasFooter, payload_messages
from gemps.v1 import transfer_pb2

from gem_core import PayloadFormat, Splitter
from gem_core.chunking import CopyingSplitter, DifferenceSplitter
from gem_core.thresholds import DIFFERENCE_BLOCKS
from gem_core.wire_kernels import COMPILED
from gem_server.flow.reader import Reader
from gem_server.state.worker_copy import WorkerCopy
from gem_server.version import Version

AnyResponse = TypeVar("AnyResponse", bound=HasFooter)


class PayloadWriter(Protocol):
    """Sends payload messages."""

    async def write(self, head: bytes, data: Buffer, *, last: bool) -> None:
        """Send a message in two pieces; returns once the transport accepted it."""


class ReplyStream:
    """Sends parameters from byte `offset` on, and updates `copy`. With `base` it sends a difference."""

    def __init__(
        self,
        reader: Reader,
        payload: PayloadFormat,
        chunk_bytes: int,
        *,
        offset: int = 0,
        copy: WorkerCopy | None = None,
        base: Version | None = None,
    ) -> None:
        self._reader = reader
        self._payload = payload
        self._chunk_bytes = chunk_bytes
        self._offset = offset
        self._copy = copy
        self._base = base

    def put_header(self, message: transfer_pb2.ParametersHeader) -> None:
        """Write the header."""
        version = message.version
        version.incarnation, version.clock = self._reader.version
        message.wire_type = int(self._payload.wire_type)  # type: ignore[assignment]
        message.byte_count = self._payload.byte_count
        message.layout_digest = self._payload.layout.digest
        if self._payload.selection is not None:
            message.buffers.runs.extend(self._payload.selection.runs)
            message.buffers.SetInParent()
        if self._base is not None:
            base = message.base_version
            base.incarnation, base.clock = self._base

    async def send(
        self,
        writer: PayloadWriter,
        *,
        head: AnyResponse,
        chunk_field: int,
        head_is_large: bool = False,
        before_last: Callable[[AnyResponse], None] | None = None,
    ) -> int:
        """Send the stream, and close the reader. Returns the number of bytes of tensors. Raises NEWER_CALL.

        `head` travels with the first chunk, or alone if `head_is_large`. `before_last` may add fields to the last
        message.
        """
        reader, copy, base = self._reader, self._copy, self._base
        splitter = self._splitter()
        version: Version | None = reader.version
        if copy is not None:
            if base is None and copy.version == version:
                version = None  # a reply that is sent again may have left other values in the copy
            copy.version = None
        try:
            reader.check_alive()
            if head_is_large:
                await writer.write(head.SerializeToString(), b"", last=False)
                head = type(head)()
            # Each chunk is encoded, added to the checksum and sent before the next one, while it is in the cache.
            to_send = self._payload.byte_count - self._offset
            for message, data, last in payload_messages(splitter, chunk_field, to_send, head, before_last):
                if last and copy is not None:
                    copy.version = version
                await writer.write(message, data, last=last)
                if base is not None and not last:
                    await asyncio.sleep(0)
                reader.check_alive()
        finally:
            reader.close()
        return self._payload.byte_count - self._offset

    def _splitter(self) -> Splitter:
        payload, copy, chunk_bytes = self._payload, self._copy, self._chunk_bytes
        parameters, rest = self._reader.parameters, memoryview(self._reader.buffers.selected(payload.selection))
        if copy is None:
            return Splitter(payload, parameters, rest, chunk_bytes, self._offset, COMPILED)
        kind = CopyingSplitter
        if self._base is not None:
            kind, chunk_bytes = DifferenceSplitter, min(chunk_bytes, DIFFERENCE_BLOCKS * payload.wire_type.unit_bytes)
        return kind(payload, parameters, rest, chunk_bytes, self._offset, COMPILED, copy=copy.values)
