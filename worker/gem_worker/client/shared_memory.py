"""Shared memory with a local server (shared_memory.proto)."""

import mmap
import os
import random
import socket
import time
from collections.abc import Sequence

import numpy as np
from gemps.limits import SHARED_MEMORY_ANSWER_BYTES, WHOLE_PAYLOAD_BYTES
from gemps.v1 import errors_pb2, shared_memory_pb2, transfer_pb2
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gem_core.payload import PayloadFormat
from gem_worker.client import operating_system
from gem_worker.client.messages import Version

# Seconds: the server's event loop may be busy.
_ANSWER_SECONDS = 10.0
_MAX_DESCRIPTORS = 8
# Two words (shared_memory.proto).
_STAMP_BYTES = 16
# Smaller payloads fit one message.
SMALLEST_SHARED_BYTES = WHOLE_PAYLOAD_BYTES + 1


class NotSharedError(Exception):
    """No shared memory; `is_odd`: unexpectedly."""

    def __init__(self, why: str, *, is_odd: bool) -> None:
        super().__init__(why)
        self.is_odd = is_odd


class TornParametersError(Exception):
    """Shared memory does not match the reply."""


class SharedMemory:
    """A session's regions, while its connection lives. Not thread-safe.

    Attributes:
        delta: writable payload (PARAMETERs as float32, BUFFERs); views stay valid after the connection ends.
    """

    def __init__(self, path: str, session_id: bytes, shard: int, payload: PayloadFormat) -> None:
        """Connect and map the regions of this shard. Raises NotSharedError."""
        self._payload = payload
        self._socket = _connect(path)
        try:
            response, descriptors = _ask(self._socket, session_id, shard)
            try:
                self._map(response, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        except (OSError, ValueError, DecodeError) as error:
            self._socket.close()
            raise NotSharedError(f"no shared memory from {path}: {error}", is_odd=True) from error
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def is_open(self) -> bool:
        """Whether the server holds its end open."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))  # empty at EOF
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Release the delta region. Idempotent."""
        self._socket.close()

    def write(self, delta: memoryview) -> None:
        """Copy a payload to the beginning of the delta region."""
        source = np.frombuffer(delta, np.uint8)
        target = np.frombuffer(self.delta, np.uint8, source.size)
        if source.ctypes.data != target.ctypes.data:
            np.copyto(target, source)

    def delta_handle(self, byte_count: int) -> transfer_pb2.SharedMemoryHandle:
        """Return the handle of a payload of so many bytes at the beginning of the delta region."""
        region = self._delta_region
        return transfer_pb2.SharedMemoryHandle(
            region=region.region, offset=region.payload_offset, byte_count=byte_count
        )

    def parameters(self, handle: transfer_pb2.SharedMemoryHandle) -> memoryview:
        """A reply's payload, read-only. Raises TornParametersError."""
        region = self._snapshots.get(handle.region)
        if region is None or (handle.offset, handle.byte_count) != (region.payload_offset, self._payload.byte_count):
            raise TornParametersError(f"the reply names region {handle.region}, which this session does not have")
        return region.payload

    def check_open(self, handle: transfer_pb2.SharedMemoryHandle, version: Version) -> None:
        """Raise TornParametersError unless the region holds this version."""
        region = self._snapshots.get(handle.region)
        found = region.version() if region is not None else None
        if found != version:
            raise TornParametersError(f"shared memory holds {found}, and the reply is about {version}")

    def _map(self, response: shared_memory_pb2.SharedMemoryResponse, descriptors: Sequence[int]) -> None:
        if response.refused:
            reason = errors_pb2.ErrorReason.Name(response.refused).removeprefix("ERROR_REASON_")
            raise NotSharedError(f"the server shares no memory: {response.message} ({reason})", is_odd=True)
        wanted = 1 + len(response.snapshots)
        if len(descriptors) != wanted or not response.snapshots:
            raise ValueError(f"{len(descriptors)} descriptors came, {wanted} were announced")
        regions = [response.delta, *response.snapshots]
        for region, descriptor in zip(regions, descriptors, strict=True):
            fits = region.payload_offset + self._payload.byte_count <= region.size_bytes <= os.fstat(descriptor).st_size
            if not fits or region.payload_bytes != self._payload.byte_count or region.payload_offset < _STAMP_BYTES:
                raise ValueError(f"region {region.region} has another size than this model needs")
            if not operating_system.keeps_its_size(descriptor):
                raise ValueError(f"region {region.region} could be cut short, which would end this process")
        self._delta_region = response.delta
        self.delta = _payload_of(mmap.mmap(descriptors[0], response.delta.size_bytes), response.delta)
        self._snapshots = {
            region.region: _Snapshot(region, mmap.mmap(descriptor, region.size_bytes, access=mmap.ACCESS_READ))
            for region, descriptor in zip(response.snapshots, descriptors[1:], strict=True)
        }


class _Snapshot:
    def __init__(self, region: shared_memory_pb2.SharedMemoryRegion, memory: mmap.mmap) -> None:
        self.payload_offset = region.payload_offset
        self.payload = _payload_of(memory, region)
        self._stamp: NDArray[np.uint64] = np.frombuffer(memory, "<u8", 2)

    def version(self) -> Version:
        return Version(int(self._stamp[0]), int(self._stamp[1]))


def _payload_of(memory: mmap.mmap, region: shared_memory_pb2.SharedMemoryRegion) -> memoryview:
    return memoryview(memory)[region.payload_offset : region.payload_offset + region.payload_bytes]


def _connect(path: str) -> socket.socket:
    if not operating_system.HAS_SHARED_MEMORY:
        raise NotSharedError("shared memory needs Linux", is_odd=False)
    connection = operating_system.packet_socket()
    try:
        connection.settimeout(_ANSWER_SECONDS)
        _enter(connection, path)
    except FileNotFoundError:
        connection.close()
        # Expected on another machine.
        raise NotSharedError(f"there is no {path} here", is_odd=False) from None
    except (OSError, ValueError) as error:
        connection.close()
        raise NotSharedError(f"{path} cannot be reached ({error})", is_odd=True) from error
    return connection


def _enter(connection: socket.socket, path: str) -> None:
    until = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
        time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 - no secret


def _ask(
    connection: socket.socket, session_id: bytes, shard: int
) -> tuple[shared_memory_pb2.SharedMemoryResponse, list[int]]:
    connection.send(shared_memory_pb2.SharedMemoryRequest(session_id=session_id, shard=shard).SerializeToString())
    data, descriptors = operating_system.receive_descriptors(connection, SHARED_MEMORY_ANSWER_BYTES, _MAX_DESCRIPTORS)
    try:
        if not data:
            raise ValueError("the server said nothing")
        return shared_memory_pb2.SharedMemoryResponse.FromString(data), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
