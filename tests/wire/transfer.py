"""Payloads on their way: a commit or upload cut into messages, and parameters collected from a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import google_crc32c
from gemps.v1 import commit_pb2, parameters_pb2, transfer_pb2

from tests.wire.model import Model, Values

# commit.proto: "A payload of at most 64 KiB goes whole".
WHOLE_LIMIT = 64 * 1024
MIB = 1024 * 1024
# worker.proto: "Messages are at most 2 MiB + 64 KiB"; transfer.proto: a chunk has 1 byte to 2 MiB.
MESSAGE_LIMIT = 2 * MIB + 64 * 1024
CHUNK_LIMIT = 2 * MIB


def runs_of(indices: Sequence[int]) -> list[int]:
    """transfer.proto: how BufferSelection names these BUFFERs, ascending."""
    runs, end = [], 0
    for index in indices:
        if index == end and runs:
            runs[-1] += 1
        else:
            runs += [index - end, 1]
        end = index + 1
    return runs


def indices_of(runs: Sequence[int]) -> list[int]:
    found, at = [], 0
    for left_out, selected in zip(runs[::2], runs[1::2], strict=True):
        found += range(at + left_out, at + left_out + selected)
        at += left_out + selected
    return found


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))


def cut_payload(payload: bytes, chunk_bytes: int) -> list[bytes]:
    """Yield chunks of this size, which may be cut within elements."""
    return [payload[start : start + chunk_bytes] for start in range(0, len(payload), chunk_bytes)]


@dataclass
class Commit:
    """One commit, ready to be sent; tests change its parts to make it wrong."""

    header: commit_pb2.CommitHeader
    payload: bytes
    chunks: list[bytes]
    footer: transfer_pb2.Footer

    @property
    def travels_whole(self) -> bool:
        return len(self.payload) <= WHOLE_LIMIT

    def opening(self) -> commit_pb2.CommitRequest:
        return commit_pb2.CommitRequest(header=self.header)

    def whole(self) -> commit_pb2.CommitRequest:
        assert len(self.chunks) == 1
        return commit_pb2.CommitRequest(header=self.header, chunk=self.chunks[0], footer=self.footer)

    def chunk_messages(self) -> list[commit_pb2.CommitRequest]:
        return [commit_pb2.CommitRequest(chunk=chunk) for chunk in self.chunks]

    def closing(self) -> commit_pb2.CommitRequest:
        return commit_pb2.CommitRequest(footer=self.footer)

    def messages(self) -> list[commit_pb2.CommitRequest]:
        """All messages of a commit that does not travel whole."""
        return [self.opening(), *self.chunk_messages(), self.closing()]

    def repeated(self) -> "Commit":
        """The same commit as a retry sends it: its header tells the payload's CRC32C."""
        header = commit_pb2.CommitHeader()
        header.CopyFrom(self.header)
        header.payload_crc32c = self.footer.crc32c
        return Commit(header, self.payload, self.chunks, self.footer)

    def with_header(self, **changes: object) -> "Commit":
        fields = {descriptor.name: value for descriptor, value in self.header.ListFields()}
        return Commit(commit_pb2.CommitHeader(**(fields | changes)), self.payload, self.chunks, self.footer)

    def with_footer(self, **changes: int) -> "Commit":
        fields = {descriptor.name: value for descriptor, value in self.footer.ListFields()}
        return Commit(self.header, self.payload, self.chunks, transfer_pb2.Footer(**(fields | changes)))

    def with_chunks(self, chunks: list[bytes]) -> "Commit":
        return Commit(self.header, self.payload, chunks, self.footer)


def footer_of(payload: bytes) -> transfer_pb2.Footer:
    return transfer_pb2.Footer(crc32c=crc32c(payload))


@dataclass
class Transfer:
    """Parameters as they arrive; `add` asserts that what the server sends keeps to transfer.proto."""

    model: Model
    wire_type: int
    chunk_limit: int = CHUNK_LIMIT
    start: int = 0
    crc32c: int = 0
    header: transfer_pb2.ParametersHeader | None = None
    payload: bytearray = field(default_factory=bytearray)
    chunk_count: int = 0
    footer: transfer_pb2.Footer | None = None
    not_modified: parameters_pb2.NotModified | None = None

    def add_header(self, header: transfer_pb2.ParametersHeader) -> None:
        assert self.header is None
        assert self.chunk_count == 0
        assert header.wire_type == self.wire_type
        assert header.layout_digest == self.model.digest
        if header.HasField("buffers"):
            self.model = self.model.selecting(indices_of(header.buffers.runs))
        assert header.byte_count == self.model.byte_count(self.wire_type)
        assert header.version.incarnation > 0
        assert header.version.clock > 0
        self.header = header

    def add_chunk(self, chunk: bytes) -> None:
        assert self.header is not None
        assert self.footer is None
        assert 1 <= len(chunk) <= self.chunk_limit
        self.payload += chunk
        self.chunk_count += 1
        assert self.received <= self.header.byte_count
        self.crc32c = int(google_crc32c.extend(self.crc32c, chunk))

    def add_footer(self, footer: transfer_pb2.Footer) -> None:
        assert self.header is not None
        assert self.footer is None
        assert self.received == self.header.byte_count
        assert self.crc32c == footer.crc32c
        self.footer = footer

    @property
    def received(self) -> int:
        return self.start + len(self.payload)

    @property
    def complete(self) -> bool:
        return self.footer is not None

    @property
    def version(self) -> transfer_pb2.Version:
        assert self.header is not None
        return self.header.version

    @property
    def clock(self) -> int:
        return self.version.clock

    @property
    def values(self) -> Values:
        assert self.complete
        return self.model.decode(bytes(self.payload), self.wire_type)
