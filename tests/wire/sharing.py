"""A worker's end of shared memory, written from shared_memory.proto alone; it shows all, and can do it wrongly."""

import asyncio
import mmap
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from gemps.v1 import commit_pb2, shared_memory_pb2, transfer_pb2

from tests.core.slow import word_sum
from tests.wire.model import SHARED_MEMORY, Values
from tests.wire.refusals import PATIENCE
from tests.wire.transfer import Commit, footer_of
from tests.wire.worker import CommitStream, RawWorker

needs_shared_memory = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="there is no memfd_create here (Linux has it)"
)


def question(commit: Commit) -> Commit:
    """The header that asks for the stored verdict of a commit with this payload, which went through shared memory."""
    fields = {"wire_type": SHARED_MEMORY, "payload_crc32c": word_sum(commit.payload)}
    asked = commit.with_header(**fields).with_footer(crc32c=fields["payload_crc32c"])
    asked.header.ClearField("shared_memory")
    return asked


def connect(path: Path | str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE)
    connection.connect(str(path))
    return connection


def answer_to(
    path: Path | str, request: bytes
) -> tuple[shared_memory_pb2.SharedMemoryResponse, list[int], socket.socket]:
    """What the server answers to these bytes, the descriptors, and the connection."""
    connection = connect(path)
    connection.send(request)
    data, descriptors, _, _ = socket.recv_fds(connection, 8192, 16)
    return shared_memory_pb2.SharedMemoryResponse.FromString(data), list(descriptors), connection


class Sharing:
    """The regions of one session, mapped, with their descriptors still open."""

    def __init__(self, worker: RawWorker, path: Path | str) -> None:
        self.worker = worker
        request = shared_memory_pb2.SharedMemoryRequest(session_id=worker.session_id)
        self.response, self.descriptors, self.connection = answer_to(path, request.SerializeToString())
        assert not self.response.refused, self.response.message
        self.regions = [self.response.delta, *self.response.snapshots]
        assert len(self.descriptors) == len(self.regions)
        for region, descriptor in zip(self.regions, self.descriptors, strict=True):
            assert os.fstat(descriptor).st_size == region.size_bytes
        self.delta = mmap.mmap(self.descriptors[0], self.response.delta.size_bytes)
        self.snapshots = {
            region.region: mmap.mmap(descriptor, region.size_bytes, prot=mmap.PROT_READ)
            for region, descriptor in zip(self.regions[1:], self.descriptors[1:], strict=True)
        }

    @classmethod
    async def of(cls, worker: RawWorker) -> "Sharing":
        """Of a worker that has joined; the server runs on this very event loop, so the waiting is done elsewhere."""
        path = worker.membership.shared_memory_socket
        return await asyncio.get_running_loop().run_in_executor(None, cls, worker, path)

    def close(self) -> None:
        self.connection.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def write(self, payload: bytes) -> None:
        start = self.response.delta.payload_offset
        self.delta[start : start + len(payload)] = payload

    def handle(self, **changes: int) -> transfer_pb2.SharedMemoryHandle:
        region = self.response.delta
        fields = {"region": region.region, "offset": region.payload_offset, "byte_count": region.payload_bytes}
        return transfer_pb2.SharedMemoryHandle(**(fields | changes))

    def prepare(self, delta: Values, **header_changes: Any) -> Commit:
        """The next commit, its payload in the delta region."""
        payload = self.worker.model.encode(delta)
        self.write(payload)
        commit = self.worker.prepare(
            delta, **({"wire_type": SHARED_MEMORY, "shared_memory": self.handle()} | header_changes)
        )
        return Commit(commit.header, payload, [], footer_of(payload))

    async def commit(self, delta: Values, **header_changes: Any) -> tuple[commit_pb2.Verdict, bytes]:
        """One commit on a stream of its own; the verdict, and the payload that lies in shared memory."""
        return await self.exchange(self.prepare(delta, **header_changes))

    async def exchange(self, commit: Commit) -> tuple[commit_pb2.Verdict, bytes]:
        stream = self.worker.commit_stream()
        await stream.send(commit.opening())
        outcome = await self.outcome(stream)
        await stream.end()
        return outcome

    async def outcome(self, stream: CommitStream) -> tuple[commit_pb2.Verdict, bytes]:
        message = await stream.receive()
        assert message is not None
        return self.read(message)

    def read(self, message: commit_pb2.CommitResponse) -> tuple[commit_pb2.Verdict, bytes]:
        """What one answer says, and where it says it: verdict, parameters by a handle and footer in one message."""
        assert [descriptor.name for descriptor, _ in message.ListFields()] == ["verdict", "parameters", "footer"]
        head, footer = message.parameters, message.footer
        assert footer.crc32c == 0
        region = next(one for one in self.response.snapshots if one.region == head.shared_memory.region)
        place = head.shared_memory
        assert (place.offset, place.byte_count) == (region.payload_offset, region.payload_bytes)
        assert self.stamp(region.region) == (head.version.incarnation, head.version.clock)
        worker = self.worker
        if not message.verdict.duplicate:
            worker.sequence = max(worker.sequence, message.verdict.sequence)
        worker.version = head.version
        memory = self.snapshots[region.region]
        return message.verdict, memory[place.offset : place.offset + place.byte_count]

    def stamp(self, region: int) -> tuple[int, int]:
        incarnation, clock = struct.unpack("<QQ", self.snapshots[region][:16])
        return incarnation, clock
