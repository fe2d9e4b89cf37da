"""Parameters on their way in: header, chunks and footer, from a pull or a commit's reply, into the caller's buffer.

One receiver lives through all attempts of a transfer: what has arrived stays, and a resumed pull goes on behind it.
"""

from typing import Protocol

import numpy as np
from gemps.framing import Buffer
from gemps.v1 import transfer_pb2

from gem_core.chunking import RawAssembler
from gem_core.payload import PayloadFormat
from gem_worker.client.errors import ServerMisbehavedError
from gem_worker.client.messages import Version
from gem_worker.client.shared_memory import SharedMemory


class Receiver(Protocol):
    """What a stream of parameters is fed into, part by part."""

    def reset(self) -> None:
        """Forget what has arrived."""

    def announce(self, header: transfer_pb2.ParametersHeader) -> None:
        """The header came."""

    def add(self, offset: int, data: Buffer) -> None:
        """A chunk came."""

    def finish(self, footer: transfer_pb2.Footer) -> None:
        """The footer came."""


class ParametersReceiver:
    """Receives one payload of the given format into `into`.

    Args:
        payload: the format.
        into: where it goes.
        shared: where a server may say that it lies; else it comes as chunks.
        in_place: what lies there is not copied to `into`.

    Attributes:
        version: of what is arriving; None before the header.
        parameters: where the payload is at the end.
    """

    def __init__(
        self, payload: PayloadFormat, into: memoryview, shared: SharedMemory | None = None, *, in_place: bool = False
    ) -> None:
        self._payload = payload
        self._into = into
        self._shared = shared
        self._in_place = in_place
        self._handle: transfer_pb2.SharedMemoryHandle | None = None
        self._assembler = RawAssembler(payload, into)
        self.version: Version | None = None
        self.parameters = into

    @property
    def received(self) -> int:
        """Bytes that have arrived in order: a border, at which a torn transfer can go on."""
        return self._assembler.received

    def fits(self, payload: PayloadFormat, into: memoryview, shared: SharedMemory | None, *, in_place: bool) -> bool:
        """Whether it was made with these arguments: then `reset` makes it as good as new."""
        return self._payload is payload and self._into is into and self._shared is shared and self._in_place is in_place

    def reset(self) -> None:
        """Forget what has arrived: the transfer starts over."""
        self._assembler.restart()
        self._handle = None
        self.version = None
        self.parameters = self._into

    def announce(self, header: transfer_pb2.ParametersHeader) -> None:
        """The server's header, of a transfer that starts or goes on.

        Raises ServerMisbehavedError when it announces other than what was asked for.
        """
        payload = self._payload
        if not self._is_as_asked(header):
            raise ServerMisbehavedError(
                f"the server sends {header.byte_count} bytes of layout {header.layout_digest.hex()[:8]} in wire type "
                f"{header.wire_type}; {payload.byte_count} of {payload.layout.digest.hex()[:8]} in "
                f"{payload.wire_type} were asked for"
            )
        version = Version.of(header.version)
        if header.offset != self.received or (self.version is not None and version != self.version):
            raise ServerMisbehavedError(
                f"the server goes on with {version} at byte {header.offset}, not with {self.version} at {self.received}"
            )
        self.version = version
        self._handle = header.shared_memory if header.HasField("shared_memory") else None
        if self._handle is not None and self._shared is None:
            raise ServerMisbehavedError("the server names shared memory for a reply that was to come as chunks")
        # The footer counts the chunks of this attempt, but the CRC is of all bytes.
        self._assembler.restart(self._assembler.received, self._assembler.crc32c)

    def _is_as_asked(self, header: transfer_pb2.ParametersHeader) -> bool:
        payload = self._payload
        return (
            header.byte_count == payload.byte_count
            and header.wire_type == int(payload.wire_type)
            and header.with_constants == payload.with_constants
            and header.layout_digest == payload.layout.digest
        )

    @property
    def sink(self) -> RawAssembler:
        """Where chunks go that continue what has arrived."""
        if self.version is None:
            raise ServerMisbehavedError("the server sent a chunk before the header")
        return self._assembler

    def add(self, offset: int, data: Buffer) -> None:
        """A chunk. Raises gem_core's ChunkError when it does not continue what has arrived."""
        self.sink.add(offset, data)

    def finish(self, footer: transfer_pb2.Footer) -> None:
        """The footer. Raises gem_core's SizeMismatchError or ChecksumError when it does not match.

        Of parameters in shared memory: raises TornParametersError when what lies there is not what was announced.
        """
        if self.version is None:
            raise ServerMisbehavedError("the server sent a footer before the header")
        if self._handle is not None:
            self._take(self._handle)
            return
        self._assembler.finish(footer.byte_count, footer.chunk_count, footer.crc32c)

    def _take(self, handle: transfer_pb2.SharedMemoryHandle) -> None:
        shared, version = self._shared, self.version
        if shared is None or version is None:
            raise AssertionError("announce() has checked this")
        found = shared.parameters(handle)
        shared.check(handle, version)
        if self._in_place:
            self.parameters = found
        else:
            np.copyto(np.frombuffer(self._into, np.uint8), np.frombuffer(found, np.uint8))
            shared.check(handle, version)
