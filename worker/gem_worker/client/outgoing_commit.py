"""The messages of a commit. All attempts of one commit send identical bytes, as commit.proto requires."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self

from gemps.framing import COMMIT_REQUEST_CHUNK
from gemps.limits import WHOLE_PAYLOAD_BYTES
from gemps.v1 import commit_pb2

from gem_core.checksum import word_sum
from gem_core.chunking import ScaledSplitter
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_core.selection import Selection
from gem_core.wire_types import WireType
from gem_worker.client.errors import ServerMisbehavedError
from gem_worker.client.messages import Version, to_wire_types
from gem_worker.client.send import ChunkMessage, watched_messages
from gem_worker.client.shared_memory import SharedMemory
from gem_worker.client.watchdog import Watched


def round_trips(delta_bytes: int) -> int:
    """Round trips of a commit: a small delta travels with its header, a larger one waits for `proceed` first."""
    return 1 if delta_bytes <= WHOLE_PAYLOAD_BYTES else 2


class StepCount(NamedTuple):
    """The number of gradients, or of steps of the worker's own optimizer, in a delta (commit.proto).

    `leaves` says that the worker leaves after this commit, which may then have fewer gradients than the run's.
    """

    local_steps: int = 0
    optimizer_steps: int = 0
    leaves: bool = False


NO_STEPS = StepCount()


class Delta(NamedTuple):
    """A delta to commit. `buffers` are the BUFFERs in its payload (None: all). `eta`, `decays`: see Client.commit."""

    sequence: int
    base: Version
    payload: memoryview
    loss: float | None
    samples: int
    scale: float | None
    steps: StepCount
    commit_id: int = 0
    buffers: Selection | None = None
    eta: float | None = None
    decays: Sequence[float] = ()


class OutgoingCommit(Protocol):
    """A commit that can be sent several times."""

    sequence: int
    waits_for_proceed: bool

    def question(self) -> bytes:
        """The header alone, to request the stored verdict."""

    def first_messages(self, watched: Watched) -> Iterator[ChunkMessage]:
        """Start an attempt: the header, or a small commit."""

    def messages_after_proceed(self, watched: Watched) -> Iterator[ChunkMessage]:
        """Continue after the server's proceed."""


class SharedCommit:
    """A delta in shared memory."""

    waits_for_proceed = False

    def __init__(self, session_id: bytes, delta: Delta, payload: PayloadFormat, shared: SharedMemory) -> None:
        self.sequence = delta.sequence
        self.shared = shared
        self._delta = delta
        self._payload = payload
        self._header = _header(session_id, payload, WireType.SHARED_MEMORY)
        _describe(self._header, delta)
        if delta.scale is not None:
            self._header.scale = delta.scale
        self._is_first = True
        shared.write(delta.payload)

    def question(self) -> bytes:
        """See `OutgoingCommit`."""
        self._sum_up()
        return commit_pb2.CommitRequest(header=self._header).SerializeToString()

    def first_messages(self, watched: Watched) -> Iterator[ChunkMessage]:
        """See `OutgoingCommit`. Only repeats have the word sum in the header."""
        if not self._is_first:
            self._sum_up()
        self._is_first = False
        message = commit_pb2.CommitRequest(header=self._header)
        message.header.shared_memory.CopyFrom(self.shared.delta_handle(self._payload.byte_count))
        watched.sequence = self.sequence
        yield message.SerializeToString(), b"", False

    def messages_after_proceed(self, watched: Watched) -> Iterator[ChunkMessage]:
        """See `OutgoingCommit`."""
        raise ServerMisbehavedError("the server said proceed to a commit that lies in shared memory")

    def _sum_up(self) -> None:
        if not self._header.HasField("payload_crc32c"):
            pieces = ScaledSplitter(self._payload, MAX_CHUNK_BYTES).load(self._delta.payload, self._delta.scale)
            self._header.payload_crc32c = word_sum(b"".join(map(bytes, pieces)))


class ChunkedCommit:
    """A delta as chunks; reused for a session's commits."""

    def __init__(self, session_id: bytes, payload: PayloadFormat, chunk_bytes: int) -> None:
        self.sequence = 0
        self.payload = payload
        self._is_whole = round_trips(payload.byte_count) == 1
        self.waits_for_proceed = not self._is_whole
        self._source = ScaledSplitter(payload, MAX_CHUNK_BYTES if self._is_whole else chunk_bytes)
        self._request = commit_pb2.CommitRequest(header=_header(session_id, payload, payload.wire_type))
        self._header = self._request.header
        self._is_first = True

    def begin(self, delta: Delta) -> Self:
        """Use this object for the next delta, and return it."""
        self.sequence = delta.sequence
        self._source.load(delta.payload, delta.scale)
        _describe(self._header, delta)
        self._is_first = True
        return self

    def question(self) -> bytes:
        """See `OutgoingCommit`."""
        self._sum_up()
        return commit_pb2.CommitRequest(header=self._header).SerializeToString()

    def first_messages(self, watched: Watched) -> Iterator[ChunkMessage]:
        """See `OutgoingCommit`. Repeats carry the CRC in the header."""
        if not self._is_first:
            self._sum_up()
        self._is_first = False
        if self._is_whole:
            return self._chunks(watched, self._request)
        return iter(((self._request.SerializeToString(), b"", False),))

    def messages_after_proceed(self, watched: Watched) -> Iterator[ChunkMessage]:
        """See `OutgoingCommit`."""
        return self._chunks(watched, commit_pb2.CommitRequest())

    def _chunks(self, watched: Watched, first: commit_pb2.CommitRequest) -> Iterator[ChunkMessage]:
        return watched_messages(self._source, COMMIT_REQUEST_CHUNK, first, watched, sequence=self.sequence)

    def _sum_up(self) -> None:
        if not self._header.HasField("payload_crc32c"):
            for _ in self._source:
                pass
            self._header.payload_crc32c = self._source.crc32c


def _header(session_id: bytes, payload: PayloadFormat, wire_type: WireType) -> commit_pb2.CommitHeader:
    (name,) = to_wire_types([wire_type])
    header = commit_pb2.CommitHeader(session_id=session_id, byte_count=payload.byte_count, wire_type=name)
    if payload.selection is not None:
        header.buffers.runs.extend(payload.selection.runs)
        header.buffers.SetInParent()
    return header


def _describe(header: commit_pb2.CommitHeader, delta: Delta) -> None:
    header.sequence = delta.sequence
    base, version = header.base_version, delta.base
    base.incarnation, base.clock = version.incarnation, version.clock
    header.samples = delta.samples
    header.local_steps, header.optimizer_steps, header.leaves = delta.steps
    header.commit_id = delta.commit_id
    header.ClearField("payload_crc32c")
    if delta.loss is None:
        header.ClearField("loss")
    else:
        header.loss = delta.loss
    if delta.eta is None:
        header.ClearField("eta")
    else:
        header.eta = delta.eta
    header.ClearField("decays")
    header.decays.extend(delta.decays)
