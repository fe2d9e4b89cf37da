"""RawWorker: a worker that shows every message, and can be told to send any of them wrongly, late or not at all."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from gemps.v1 import commit_pb2, parameters_pb2, session_pb2, transfer_pb2
from google.protobuf.message import Message

from tests.wire.calls import Stream, Stub, open_channel, tls_context
from tests.wire.lane import LaneCall, hello
from tests.wire.model import FLOAT32, Model, Values
from tests.wire.refusals import PATIENCE, Refusal, refused
from tests.wire.transfer import CHUNK_LIMIT, MIB, Commit, Transfer, cut_payload, footer_of, runs_of

# What each worker here announces unless a test says otherwise; some of it only raw messages of a test can do.
FEATURES = ("differences", "shards", "recipe", "local-steps", "scaled-local-steps")


def announced(*directions: str, clips: bool = True) -> list[str]:
    """Features of a worker that computes these directions, and clips gradients."""
    return [*FEATURES, *(["clip-norm"] if clips else []), *(f"direction-{one}" for one in directions)]


@dataclass
class Outcome:
    """What one commit brought: its verdict and the parameters that came with it."""

    verdict: commit_pb2.Verdict
    reply: Transfer


class RawWorker:
    """A worker's own state (what it holds, which sequence it is at) and its calls, one method each.

    With `uses_lane` its Commit calls go over the lane of a server that has one, each on a connection of its own.
    """

    uses_lane = False

    def __init__(
        self,
        address: str,
        model: Model,
        name: str,
        *,
        reads_ahead: bool = True,
        channel: grpc.aio.Channel | None = None,
        **join_fields: Any,
    ) -> None:
        self.address = address
        self.model = model
        self.name = name
        self.session_id = os.urandom(16)
        self.join_fields = join_fields
        self.channel = channel or open_channel(address, reads_ahead=reads_ahead)
        self.stub = Stub(self.channel)
        self.membership = session_pb2.JoinResponse()
        # Last applied sequence, and what the worker holds: of the last completed pull or reply.
        self.sequence = 0
        self.version = transfer_pb2.Version()
        self.held: Transfer | None = None
        self._stream: CommitStream | None = None
        self._reads_ahead = reads_ahead
        self._lane_calls: list[LaneCall] = []

    async def close(self) -> None:
        for call in self._lane_calls:
            call.abort()
        await self.channel.close()

    def twin(self, session_id: bytes | None = None) -> "RawWorker":
        """Another process of the same name; with the session id given, the same session over another connection."""
        twin = RawWorker(self.address, self.model, self.name, **self.join_fields)
        twin.membership.CopyFrom(self.membership)
        if session_id is not None:
            twin.session_id = session_id
            twin.sequence, twin.version, twin.held = self.sequence, self.version, self.held
        return twin

    # -- session ---------------------------------------------------------------------------------------------------

    def join_request(self, **changes: Any) -> session_pb2.JoinRequest:
        fields = {
            "session_id": self.session_id,
            "worker_name": self.name,
            "host_id": "host",
            "layout": self.model.to_proto(),
            "features": FEATURES,
            "agent": "wire-tests",
            "device": "cpu",
        }
        return session_pb2.JoinRequest(**(fields | self.join_fields | changes))

    async def join(self, **changes: Any) -> session_pb2.JoinResponse:
        self.membership = await self.stub.Join(self.join_request(**changes), timeout=PATIENCE)
        self.sequence = self.membership.last_applied_sequence
        return self.membership

    async def heartbeat(self) -> session_pb2.HeartbeatResponse:
        return await self.stub.Heartbeat(session_pb2.HeartbeatRequest(session_id=self.session_id), timeout=PATIENCE)

    async def leave(self, reason: str = "finished") -> session_pb2.LeaveResponse:
        request = session_pb2.LeaveRequest(session_id=self.session_id, reason=reason)
        return await self.stub.Leave(request, timeout=PATIENCE)

    @property
    def delta_wire_type(self) -> int:
        return self.membership.delta_wire_type or FLOAT32

    @property
    def parameter_wire_type(self) -> int:
        return self.membership.parameter_wire_type or FLOAT32

    # -- first parameters ------------------------------------------------------------------------------------------

    def upload(self, values: Values, chunk_bytes: int = MIB) -> list[parameters_pb2.InitializeRequest]:
        """The messages of an Initialize: header, each chunk, footer."""
        payload = self.model.encode(values)
        chunks = cut_payload(payload, chunk_bytes)
        header = parameters_pb2.InitializeHeader(session_id=self.session_id, byte_count=len(payload))
        return [
            parameters_pb2.InitializeRequest(header=header),
            *(parameters_pb2.InitializeRequest(chunk=chunk) for chunk in chunks),
            parameters_pb2.InitializeRequest(footer=footer_of(payload)),
        ]

    def initialize_stream(self) -> Stream:
        return Stream(self.stub.Initialize())

    async def initialize(
        self, values: Values | None = None, messages: list[Message | bytes] | None = None
    ) -> parameters_pb2.InitializeResponse:
        stream = self.initialize_stream()
        for message in messages or self.upload(values or self.model.random_values(0)):
            await stream.send(message)
        await stream.half_close()
        return await stream.answer()

    # -- pull ------------------------------------------------------------------------------------------------------

    def pull_request(self, **changes: Any) -> parameters_pb2.PullRequest:
        return parameters_pb2.PullRequest(**({"session_id": self.session_id} | changes))

    async def pull(self, *, stop_after: int | None = None, **changes: Any) -> Transfer:
        """Pulls to the end, or cancels after `stop_after` chunks; only a complete pull changes `held`."""
        transfer = Transfer(self.model, self.parameter_wire_type, self.membership.chunk_bytes or CHUNK_LIMIT)
        await self._collect_pull(self.pull_request(**changes), transfer, stop_after)
        self.hold(transfer)
        return transfer

    async def resume(self, torn: Transfer, **changes: Any) -> Transfer:
        """The rest of a torn transfer; the answer holds all of it, from the first byte."""
        rest = Transfer(torn.model, torn.wire_type, torn.chunk_limit, start=torn.received, crc32c=torn.crc32c)
        request = self.pull_request(resume_version=torn.version, resume_offset=torn.received, **changes)
        await self._collect_pull(request, rest, None)
        rest.payload[:0] = torn.payload
        rest.start = 0
        self.hold(rest)
        return rest

    async def _collect_pull(
        self, request: parameters_pb2.PullRequest, transfer: Transfer, stop_after: int | None
    ) -> None:
        stream = Stream(self.stub.Pull(request))
        while (message := await stream.receive()) is not None:
            if message.HasField("not_modified"):
                transfer.not_modified = message.not_modified
            if collect(message, "header", transfer, stop_after):
                stream.cancel()
                return

    def hold(self, transfer: Transfer) -> None:
        if transfer.complete:
            self.version, self.held = transfer.version, transfer

    # -- commits ---------------------------------------------------------------------------------------------------

    def prepare(
        self, delta: Values, *, chunk_bytes: int = MIB, selected: Sequence[int] | None = None, **header_changes: Any
    ) -> Commit:
        """The next commit, with this delta, against what the worker holds; `selected`: the BUFFERs in it."""
        model = self.model if selected is None else self.model.selecting(selected)
        payload = model.encode(delta, self.delta_wire_type)
        chunks = cut_payload(payload, chunk_bytes)
        if selected is not None:
            header_changes = {"buffers": transfer_pb2.BufferSelection(runs=runs_of(selected))} | header_changes
        fields = {
            "session_id": self.session_id,
            "sequence": self.sequence + 1,
            "base_version": self.version,
            "wire_type": self.delta_wire_type,
            "byte_count": len(payload),
            "local_steps": self.membership.settings.local_steps,
        }
        header = commit_pb2.CommitHeader(**(fields | header_changes))
        return Commit(header, payload, chunks, footer_of(payload))

    def delta(self, seed: int) -> Values:
        return self.model.random_values(seed, scale=0.01)

    def commit_call(self, timeout: float | None = None) -> Any:
        """A Commit call."""
        port = self.membership.lane_port
        if not (self.uses_lane and port):
            return self.stub.Commit(timeout=timeout)
        greeting = hello(self.session_id, self.membership.incarnation)
        address = self.address.rpartition(":")[0], port
        call = LaneCall(address, greeting, tls_context(), reads_ahead=self._reads_ahead, timeout=timeout)
        self._lane_calls.append(call)
        return call

    @property
    def has_stream(self) -> bool:
        """Whether `commit` has opened a stream."""
        return self._stream is not None

    def commit_stream(self, timeout: float | None = None) -> "CommitStream":
        return CommitStream(self, timeout)

    async def commit(self, delta: Values, **header_changes: Any) -> Outcome:
        """One commit on the stream that this worker keeps open for all of them."""
        if self._stream is None or self._stream.call.done():
            self._stream = self.commit_stream()
        commit = self.prepare(delta, **header_changes)
        await self._stream.send_commit(commit)
        return await self._stream.outcome()

    async def commit_on_new_stream(self, commit: Commit) -> Outcome:
        stream = self.commit_stream()
        await stream.send_commit(commit)
        outcome = await stream.outcome()
        await stream.end()
        return outcome


class CommitStream(Stream):
    """One Commit call of a worker."""

    def __init__(self, worker: RawWorker, timeout: float | None) -> None:
        super().__init__(worker.commit_call(timeout))
        self.worker = worker

    async def proceed(self) -> int:
        """Expects proceed and nothing else; its sequence."""
        message = await self.receive()
        assert message is not None, "the server ended the stream with OK instead of proceed"
        assert [descriptor.name for descriptor, _ in message.ListFields()] == ["proceed"]
        return int(message.proceed.sequence)

    async def send_opening(self, commit: Commit) -> None:
        """Sends the header and waits for the buffer."""
        await self.send(commit.opening())
        assert await self.proceed() == commit.header.sequence

    async def send_commit(self, commit: Commit) -> None:
        if commit.travels_whole and len(commit.chunks) == 1:
            await self.send(commit.whole())
            return
        await self.send_opening(commit)
        await self.send_rest(commit)

    async def send_rest(self, commit: Commit) -> None:
        for message in commit.chunk_messages():
            await self.send(message)
        await self.send(commit.closing())

    async def outcome(self, *, stop_after: int | None = None, first: Any = None) -> Outcome:
        """Reads verdict and parameters; with stop_after, cancels the stream when so many chunks have arrived.

        `first`: the answer's first message, where it was read already.
        """
        worker = self.worker
        message = first or await self.receive()
        assert message is not None, "the server ended the stream with OK instead of a verdict"
        assert message.HasField("verdict"), message
        verdict = message.verdict
        if not verdict.duplicate:
            worker.sequence = max(worker.sequence, verdict.sequence)
        reply = Transfer(worker.model, worker.parameter_wire_type, worker.membership.chunk_bytes or CHUNK_LIMIT)
        while True:
            if collect(message, "parameters", reply, stop_after):
                self.cancel()
                break
            if reply.complete:
                break
            message = await self.receive()
            assert message is not None, "the server ended the stream with OK within a reply"
            assert not message.HasField("verdict")
        worker.hold(reply)
        return Outcome(verdict, reply)

    async def outcome_of_repeat(self, commit: Commit) -> Outcome:
        """Sends a header that may be a repeat; the payload only if the server says proceed, so that it is none."""
        await self.send(commit.repeated().opening())
        message = await self.receive()
        assert message is not None
        if message.HasField("proceed"):
            await self.send_rest(commit)
            message = await self.receive()
        return await self.outcome(first=message)

    async def refused(self, *reasons: str) -> Refusal:
        """Expects that the server ends the stream with this refusal now."""
        return await refused(self.receive(), *reasons)

    async def end(self) -> None:
        """Half-closes between two commits; the server must end with OK."""
        await self.half_close()
        assert await self.receive() is None


def collect(message: Any, header_field: str, transfer: Transfer, stop_after: int | None) -> bool:
    """Adds a message's parts in their legal order; whether the caller has seen as many chunks as it wanted."""
    if message.HasField(header_field):
        transfer.add_header(getattr(message, header_field))
    if stop_after == 0 and transfer.header is not None:
        return True
    if message.chunk:
        transfer.add_chunk(message.chunk)
        if transfer.chunk_count == stop_after:
            return True
    if message.HasField("footer"):
        transfer.add_footer(message.footer)
    return False


async def all_of(*calls: Any) -> list[Any]:
    """Runs calls side by side, for at most PATIENCE seconds."""
    return list(await asyncio.wait_for(asyncio.gather(*calls), PATIENCE))
