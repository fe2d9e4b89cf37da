"""Receives parameters. A transfer may take several attempts."""

from typing import Protocol

import numpy as np
from gemps.framing import Buffer
from gemps.v1 import transfer_pb2

from gem_core.chunking import Assembler, RawAssembler
from gem_core.payload import PayloadFormat, selected_format
from gem_core.selection import Selection
from gem_worker.client.differences import Differences
from gem_worker.client.errors import ServerMisbehavedError, TornCallError
from gem_worker.client.messages import Version
from gem_worker.client.shared_memory import SharedMemory


class Receiver(Protocol):
    """Takes the messages of a stream of parameters."""

    def reset(self) -> None:
        """Discard received data."""

    def announce(self, header: transfer_pb2.ParametersHeader) -> None:
        """Handle the header."""

    def add(self, data: Buffer) -> None:
        """Handle a chunk."""

    def finish(self, footer: transfer_pb2.Footer) -> None:
        """Handle the footer."""


class ParametersReceiver:
    """Receives a payload into `into`, or leaves it in shared memory if `in_place`; adds up `differences`.

    Attributes:
        takes_selection: whether the server may leave out BUFFERs.
        version: the version of the parameters. None before the header.
        parameters: the memory that has the payload.
        buffers, rest: the BUFFERs that came, and their bytes. None if all came: they follow the PARAMETERs in
            `parameters`.
    """

    def __init__(
        self,
        payload: PayloadFormat,
        into: memoryview,
        shared: SharedMemory | None = None,
        *,
        in_place: bool = False,
        differences: Differences | None = None,
        layout_digest: bytes = b"",
    ) -> None:
        """Create a receiver. `layout_digest` is that of Join's answer. Default: the digest of the payload's layout."""
        self._payload = payload
        self._layout_digest = layout_digest or payload.layout.digest
        self._into = into
        self._shared = shared
        self._in_place = in_place
        self._handle: transfer_pb2.SharedMemoryHandle | None = None
        self._differences = differences
        self._whole = RawAssembler(payload, into)
        self._partial: RawAssembler | None = None
        self._difference: Assembler | None = None
        self._assembler: Assembler = self._whole
        self.takes_selection = False
        self.version: Version | None = None
        self.parameters = into
        self.buffers: Selection | None = None
        self.rest: memoryview | None = None

    @property
    def received(self) -> int:
        """The offset at which a transfer of the whole payload can resume. It is 0 if a difference is received."""
        received = self._assembler.received
        if self._assembler is self._partial:  # the whole payload begins with the same PARAMETERs, and has other BUFFERs
            return received if received <= self._payload.parameter_bytes else 0
        return received if self._assembler is self._whole else 0

    def fits(self, payload: PayloadFormat, into: memoryview, shared: SharedMemory | None, *, in_place: bool) -> bool:
        """Whether this object can receive such a payload again after `reset`."""
        return self._payload is payload and self._into is into and self._shared is shared and self._in_place is in_place

    def reset(self) -> None:
        """See Receiver."""
        self._assembler = self._whole
        self._assembler.restart()
        self._handle = None
        self.version = None
        self.parameters = self._into
        self.buffers = self.rest = None

    def announce(self, header: transfer_pb2.ParametersHeader) -> None:
        """Handle the header. Raises ServerMisbehavedError if unexpected."""
        self._choose_assembler(header)
        payload = self._assembler.payload
        if (payload.byte_count, int(payload.wire_type), self._layout_digest) != (
            header.byte_count,
            header.wire_type,
            header.layout_digest,
        ):
            raise ServerMisbehavedError(
                f"the server sends {header.byte_count} bytes of layout {header.layout_digest.hex()[:8]} in wire type "
                f"{header.wire_type}; {payload.byte_count} of {self._layout_digest.hex()[:8]} in "
                f"{payload.wire_type} were asked for"
            )
        version = Version.from_wire(header.version)
        if self.version is not None and version != self.version:
            raise ServerMisbehavedError(f"the server continues with {version}, not with {self.version}")
        self.version = version
        self._handle = header.shared_memory if header.HasField("shared_memory") else None
        if self._handle is not None and self._shared is None:
            raise ServerMisbehavedError("the server names shared memory for a reply that was to come as chunks")
        # The footer's CRC covers all bytes, also those that an earlier attempt brought.
        self._assembler.restart(self._assembler.received, self._assembler.crc32c)

    def _choose_assembler(self, header: transfer_pb2.ParametersHeader) -> None:
        base = Version.from_wire(header.base_version) if header.HasField("base_version") else None
        self.buffers = Selection(tuple(header.buffers.runs)) if header.HasField("buffers") else None
        if self.buffers is not None and not self.takes_selection:
            raise ServerMisbehavedError("the server leaves out BUFFERs, which was not asked for")
        if self._assembler is not self._whole:
            received = self.received
            self._whole.restart(received, self._assembler.crc32c if received else 0)
        if base is None:
            self._assembler = self._whole if self.buffers is None else self._assembler_of(self.buffers)
        elif self._differences is None:
            raise ServerMisbehavedError("the server sends a difference of parameters, which was not asked for")
        elif base != self._differences.version:
            self.version = Version.from_wire(header.version)
            raise TornCallError(f"the server sends a difference from {base}, not {self._differences.version}")
        else:
            self._assembler = self._difference = self._differences.assembler(self._into, self.buffers)

    def _assembler_of(self, buffers: Selection) -> RawAssembler:
        payload = selected_format(self._payload.layout, self._payload.wire_type, buffers)
        if self._partial is None or self._partial.payload is not payload:
            self._partial = RawAssembler(payload, self._into[: payload.byte_count])
        self._partial.restart()
        return self._partial

    @property
    def sink(self) -> Assembler:
        """Assembler for chunks."""
        if self.version is None:
            raise ServerMisbehavedError("the server sent a chunk before the header")
        return self._assembler

    def add(self, data: Buffer) -> None:
        """Handle a chunk. Raises gem_core's ChunkError."""
        self.sink.add(data)

    def finish(self, footer: transfer_pb2.Footer) -> None:
        """Handle the footer. Raises gem_core's SizeMismatchError or ChecksumError, or TornParametersError."""
        if self.version is None:
            raise ServerMisbehavedError("the server sent a footer before the header")
        if self._handle is not None:
            self._write_chunk(self._handle)
            return
        self._assembler.finish(footer.crc32c)
        if self.buffers is not None:
            split = self._payload.parameter_bytes
            self.rest = self._into[split : split + self._assembler.payload.rest_bytes]
        if self._differences is not None:
            # Whole parameters may come without all BUFFERs: after a change of wire types.
            is_difference = self._assembler is self._difference
            settle = self._differences.add_to_held if is_difference else self._differences.hold_whole
            settle(self._into, self.version)

    def _write_chunk(self, handle: transfer_pb2.SharedMemoryHandle) -> None:
        shared, version = self._shared, self.version
        if shared is None or version is None:
            raise AssertionError("announce() has checked this")
        found = shared.parameters(handle)
        shared.check_open(handle, version)
        split = self._payload.parameter_bytes
        if self.buffers is not None:
            rest = found[split:]
            self.rest = memoryview(b"".join(rest[start:stop] for start, stop in self._assembler.payload.rest_ranges()))
        if self._in_place:
            self.parameters = found
        else:
            stop = split if self.buffers is not None else len(found)
            np.copyto(np.frombuffer(self._into, np.uint8, stop), np.frombuffer(found, np.uint8, stop))
            shared.check_open(handle, version)
