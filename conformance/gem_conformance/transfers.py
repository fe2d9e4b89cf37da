"""Transfers."""

from __future__ import annotations

import time

from gemps.v1 import commit_pb2, parameters_pb2, transfer_pb2

from gem_conformance.central import Central, Snapshot
from gem_conformance.wire import TORN, Call
from gem_core.payload import PayloadFormat

__all__ = ["Transfers", "as_pull"]


class Transfers:
    """A scenario's transfers; `sent`: bytes of the last one, from offset 0."""

    def __init__(self, central: Central, chunk_bytes: int) -> None:
        self.count = 0
        self.sent = 0
        self._central = central
        self._chunk_bytes = chunk_bytes

    def begin(
        self,
        payload: PayloadFormat,
        snapshot: Snapshot,
        offset: int,
        digest: bytes,
        *,
        damaged: bool,
        base: Snapshot | None = None,
    ) -> list[commit_pb2.CommitResponse]:
        """Header, chunks and footer. `damaged`: flip a payload bit. `base`: of a difference."""
        self.count += 1
        header = transfer_pb2.ParametersHeader(
            version=snapshot.version.to_wire(),
            wire_type=int(payload.wire_type),  # type: ignore[arg-type]
            byte_count=payload.byte_count,
            layout_digest=digest,
            base_version=None if base is None else base.version.to_wire(),
        )
        splitter = snapshot.split(payload, self._chunk_bytes, offset, base)
        chunks = list(map(bytes, splitter))
        footer = transfer_pb2.Footer(crc32c=splitter.crc32c)
        if damaged:
            # The lowest bit keeps the value legal.
            middle = len(chunks) // 2
            chunks[middle] = bytes([chunks[middle][0] ^ 1]) + chunks[middle][1:]
        return [
            commit_pb2.CommitResponse(parameters=header),
            *(commit_pb2.CommitResponse(chunk=chunk) for chunk in chunks),
            commit_pb2.CommitResponse(footer=footer),
        ]

    def pack(self, parts: list[commit_pb2.CommitResponse], tear_after: int | None) -> list[commit_pb2.CommitResponse]:
        """Pack alternate transfers densely; modifies `parts`."""
        if self.count % 2 or tear_after is not None:
            return parts
        messages = [parts[0]]
        for part in parts[1:]:
            if part.chunk and messages[-1].chunk:
                messages.append(part)
            else:
                messages[-1].MergeFrom(part)
        return messages

    def send(
        self,
        call: Call,
        messages: list[commit_pb2.CommitResponse] | list[parameters_pb2.PullResponse],
        offset: int,
        tear_after: int | None,
        pause: float = 0.0,
    ) -> bool:
        """Send messages, tearing after `tear_after` chunks; return whether all were sent.

        `pause`: seconds after each chunk.
        """
        chunks, self.sent = 0, offset
        for message in messages:
            has_chunk = bool(message.chunk)
            if chunks == tear_after and (has_chunk or message.HasField("footer")):
                call.end(TORN)
                return False
            call.send(message.SerializeToString())
            if has_chunk:
                chunks += 1
                self.sent += len(message.chunk)
                time.sleep(pause)
        return True


def as_pull(message: commit_pb2.CommitResponse) -> parameters_pb2.PullResponse:
    """Convert to a Pull response."""
    converted = parameters_pb2.PullResponse()
    if message.HasField("parameters"):
        converted.header.CopyFrom(message.parameters)
    converted.chunk = message.chunk
    if message.HasField("footer"):
        converted.footer.CopyFrom(message.footer)
    return converted
