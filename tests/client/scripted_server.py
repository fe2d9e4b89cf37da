"""A small correct server (theta += delta) that misbehaves exactly where a test tells it to.

Its calls pass named points, in the order of the lists below; `at(point, action, ...)` queues actions for a point, one
for each time it is passed. Without actions it keeps the contract, so a test's faults are its only faults.

  Join        join
  Heartbeat   heartbeat
  Initialize  initialize, initialized (accepted, before the answer)
  Pull        pull, pull-chunk (before each chunk)
  Commit      commit (header read), commit-chunk (after each chunk read), committed (complete and applied, before the
              verdict), reply-chunk (before each chunk of the reply)
"""

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from gem_worker.client.messages import layout_to_wire
from gemps.framing import (
    COMMIT_REQUEST_CHUNK,
    COMMIT_RESPONSE_CHUNK,
    INITIALIZE_REQUEST_CHUNK,
    PULL_RESPONSE_CHUNK,
    chunk_head,
    split_chunk,
)
from gemps.v1 import commit_pb2, parameters_pb2, run_pb2, session_pb2, transfer_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from numpy.typing import NDArray

from gem_core.checksum import crc32c
from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType

Action = Callable[[], None]


@dataclass
class Refusal(Exception):  # noqa: N818 - an answer
    code: grpc.StatusCode
    reason: str | None = None
    retry_after: float | None = None
    domain: str = "gemps"


class EndQuietlyError(Exception):
    """End the stream with OK, wherever it is."""


def tear() -> None:
    """Return an error that looks like a broken connection to the client."""
    raise Refusal(grpc.StatusCode.UNAVAILABLE)


def end_quietly() -> None:
    raise EndQuietlyError


def refuse(
    code: grpc.StatusCode, reason: str | None, retry_after: float | None = None, domain: str = "gemps"
) -> Action:
    def action() -> None:
        raise Refusal(code, reason, retry_after, domain)

    return action


def go_on() -> None:
    """An action without a fault."""


@dataclass
class Session:
    last_applied: int = 0
    stored: commit_pb2.Verdict | None = None
    crc32c: int = 0
    snapshot: bytes = b""
    version: transfer_pb2.Version | None = None


@dataclass
class ScriptedServer:
    layout: Layout
    chunk_bytes: int
    theta: NDArray[np.float32] | None
    sessions: dict[bytes, Session] = field(default_factory=dict)
    # Every delta that was applied, and every call or header that arrived.
    applied: list[NDArray[np.float32]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    pulls: list[parameters_pb2.PullRequest] = field(default_factory=list)
    headers: list[commit_pb2.CommitRequest] = field(default_factory=list)
    run_state: run_pb2.RunState = run_pb2.RUN_STATE_TRAINING
    order: run_pb2.ServingOrder = run_pb2.SERVING_ORDER_FIFO
    clock: int = 1
    incarnation: int = 7
    # So many chunks of parameters leave with a bit flipped.
    damaged_chunks: int = 0
    # The run's recipe, and its progress.
    recipe: run_pb2.Recipe | None = None
    progress: float = 0.0
    # The contexts of Commit streams, so that a test can end one while it is idle.
    streams: list[grpc.ServicerContext] = field(default_factory=list)
    # Sessions in the checkpoint of the last restart.
    saved: dict[bytes, Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._actions: defaultdict[str, deque[Action]] = defaultdict(deque)
        self._lock = threading.Lock()
        self.hung = threading.Event()
        self.released = threading.Event()
        self._port = 0
        self._server: grpc.Server | None = None

    # -- the test's side -------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def at(self, point: str, *actions: Action) -> None:
        self._actions[point].extend(actions)

    def clear(self, point: str) -> None:
        """Forget the actions that are queued for a point."""
        with self._lock:
            self._actions[point].clear()

    def hang(self) -> None:
        """An action that stays silent until `released` is set, and then breaks the call."""
        self.hung.set()
        self.released.wait()
        tear()

    def start(self) -> None:
        """Listen, on the same port as the last time if there was one."""
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join, session_pb2.JoinRequest.FromString, _bytes),
            "Heartbeat": grpc.unary_unary_rpc_method_handler(
                self._heartbeat, session_pb2.HeartbeatRequest.FromString, _bytes
            ),
            "Leave": grpc.unary_unary_rpc_method_handler(self._leave, session_pb2.LeaveRequest.FromString, _bytes),
            "Initialize": grpc.stream_unary_rpc_method_handler(self._initialize, None, _bytes),
            "Pull": grpc.unary_stream_rpc_method_handler(self._pull, parameters_pb2.PullRequest.FromString, None),
            "Commit": grpc.stream_stream_rpc_method_handler(self._commit, None, None),
        }
        generic = grpc.method_handlers_generic_handler("gemps.v1.WorkerService", handlers)
        server.add_generic_rpc_handlers((generic,))
        self._port = server.add_insecure_port(f"127.0.0.1:{self._port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        self.released.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def restart(self, *, ledger: bool, parameters: bool = True) -> None:
        """What a restart changes: incarnation and sessions; `ledger`: the sequences survive in a checkpoint."""
        self.incarnation = random.randrange(1, 1 << 63)
        kept = self.sessions
        self.sessions = {}
        if ledger:
            self.saved = {key: Session(one.last_applied, one.stored, one.crc32c) for key, one in kept.items()}
        if not parameters:
            self.theta = None
            self.clock = 0

    # -- the calls -------------------------------------------------------------------------------------------------

    def _pass(self, point: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            action = self._actions[point].popleft() if self._actions[point] else go_on
        try:
            action()
        except Refusal as refusal:
            _abort(context, refusal)

    def _session(self, session_id: bytes, context: grpc.ServicerContext) -> Session:
        if session_id not in self.sessions:
            _abort(context, Refusal(grpc.StatusCode.FAILED_PRECONDITION, "UNKNOWN_SESSION"))
        return self.sessions[session_id]

    def _join(self, request: session_pb2.JoinRequest, context: grpc.ServicerContext) -> session_pb2.JoinResponse:
        self.calls.append("Join")
        self._pass("join", context)
        session = self.sessions.setdefault(request.session_id, self.saved.pop(request.session_id, Session()))
        return session_pb2.JoinResponse(
            incarnation=self.incarnation,
            settings=run_pb2.RunSettings(rule="downpour", eta=0.1, order=self.order, recipe=self.recipe),
            run_state=self.run_state,
            delta_wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
            parameter_wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
            chunk_bytes=self.chunk_bytes,
            last_applied_sequence=session.last_applied,
            has_parameters=self.theta is not None,
            layout_digest=self.layout.digest,
            next_eta=0.1,
            progress=self.progress,
        )

    def _heartbeat(
        self, request: session_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> session_pb2.HeartbeatResponse:
        self.calls.append("Heartbeat")
        self._pass("heartbeat", context)
        session = self._session(request.session_id, context)
        return session_pb2.HeartbeatResponse(
            incarnation=self.incarnation, run_state=self.run_state, last_applied_sequence=session.last_applied
        )

    def _leave(self, request: session_pb2.LeaveRequest, context: grpc.ServicerContext) -> session_pb2.LeaveResponse:
        self.calls.append(f"Leave {request.reason}")
        self._session(request.session_id, context)
        return session_pb2.LeaveResponse(run_state=self.run_state)

    def _initialize(
        self, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> parameters_pb2.InitializeResponse:
        self.calls.append("Initialize")
        self._pass("initialize", context)
        received = bytearray()
        header: parameters_pb2.InitializeHeader | None = None
        footer: transfer_pb2.Footer | None = None
        for message in messages:
            rest, data = split_chunk(message, INITIALIZE_REQUEST_CHUNK)
            fields = parameters_pb2.InitializeRequest.FromString(rest)
            if fields.HasField("header"):
                header = fields.header
                self._session(header.session_id, context)
            if data is not None:
                received += data
            if fields.HasField("footer"):
                footer = fields.footer
        assert header is not None
        assert footer is not None
        assert (header.byte_count, footer.crc32c) == (len(received), crc32c(received))
        outcome = parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
        if self.theta is None:
            self.theta = np.frombuffer(received, np.float32, self.layout.parameter_count).copy()
            self.clock = 1
            outcome = parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED
        self._pass("initialized", context)
        return parameters_pb2.InitializeResponse(outcome=outcome, version=self.version())

    def _pull(self, request: parameters_pb2.PullRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.calls.append("Pull")
        self.pulls.append(request)
        self._pass("pull", context)
        session = self._session(request.session_id, context)
        if self.theta is None:
            _abort(context, Refusal(grpc.StatusCode.FAILED_PRECONDITION, "NOT_INITIALIZED"))
        if not request.HasField("resume_version"):
            session.snapshot, session.version = self.state(), self.version()
        elif request.resume_version != session.version:
            _abort(context, Refusal(grpc.StatusCode.FAILED_PRECONDITION, "STALE_BASE"))
        parts = self._parameters(session, request.resume_offset)
        for index, (header, data, footer) in enumerate(parts):
            self._pass("pull-chunk", context)
            first = header if index == 0 else None
            rest = parameters_pb2.PullResponse(header=first, footer=footer).SerializeToString()
            yield rest + chunk_head(PULL_RESPONSE_CHUNK, len(data)) + data

    def _commit(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.calls.append("Commit")
        self.streams.append(context)
        try:
            while True:
                yield from self._one_commit(messages, context)
        except EndQuietlyError:
            return

    def _one_commit(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        message = next(messages, None)
        if message is None:
            raise EndQuietlyError
        rest, data = split_chunk(message, COMMIT_REQUEST_CHUNK)
        request = commit_pb2.CommitRequest.FromString(rest)
        header = request.header
        self.headers.append(request)
        self._pass("commit", context)
        session = self._session(header.session_id, context)
        duplicate = header.sequence == session.last_applied and session.stored is not None
        if duplicate:
            assert header.payload_crc32c == session.crc32c
        elif header.sequence != session.last_applied + 1:
            _abort(context, Refusal(grpc.StatusCode.FAILED_PRECONDITION, "SEQUENCE_GAP"))
        elif header.base_version != session.version:
            _abort(context, Refusal(grpc.StatusCode.FAILED_PRECONDITION, "STALE_BASE"))
        else:
            received = bytearray(data or b"")
            if data is None:
                yield _bytes(commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=header.sequence)))
                received = self._receive(messages, context)
            assert len(received) == header.byte_count
            if header.HasField("payload_crc32c"):  # optional in a first attempt (commit.proto)
                assert crc32c(received) == header.payload_crc32c
            self._apply(session, header, received)
        verdict = commit_pb2.Verdict()
        assert session.stored is not None
        verdict.CopyFrom(session.stored)
        verdict.duplicate = duplicate
        self._pass("committed", context)
        if session.version is None:
            session.snapshot, session.version = self.state(), self.version()
        for index, (parameters, chunk, footer) in enumerate(self._parameters(session, 0)):
            self._pass("reply-chunk", context)
            fields = commit_pb2.CommitResponse(footer=footer)
            if index == 0:
                fields.verdict.CopyFrom(verdict)
                fields.parameters.CopyFrom(parameters)
            yield fields.SerializeToString() + chunk_head(COMMIT_RESPONSE_CHUNK, len(chunk)) + chunk

    def _receive(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytearray:
        received = bytearray()
        for message in messages:
            rest, data = split_chunk(message, COMMIT_REQUEST_CHUNK)
            assert data is not None
            received += data
            self._pass("commit-chunk", context)
            fields = commit_pb2.CommitRequest.FromString(rest)
            if fields.HasField("footer"):
                assert fields.footer.crc32c == crc32c(received)
                return received
        raise EndQuietlyError

    def _apply(self, session: Session, header: commit_pb2.CommitHeader, received: bytearray) -> None:
        delta = np.frombuffer(received, np.float32, self.layout.parameter_count).copy()
        self.applied.append(delta)
        assert self.theta is not None
        self.theta += delta
        self.clock += 1
        session.last_applied = header.sequence
        session.crc32c = crc32c(received)
        session.snapshot, session.version = self.state(), self.version()
        session.stored = commit_pb2.Verdict(
            sequence=header.sequence, version=self.version(), run_state=self.run_state, next_eta=0.05
        )

    # -- parts -----------------------------------------------------------------------------------------------------

    def version(self) -> transfer_pb2.Version:
        return transfer_pb2.Version(incarnation=self.incarnation, clock=self.clock)

    def state(self) -> bytes:
        assert self.theta is not None
        return self.theta.tobytes() + b"\1" * self.layout.buffer_bytes

    def _parameters(
        self, session: Session, start: int
    ) -> Iterator[tuple[transfer_pb2.ParametersHeader, memoryview, transfer_pb2.Footer | None]]:
        format_ = PayloadFormat(self.layout, WireType.FLOAT32)
        data = memoryview(session.snapshot)
        assert session.version is not None
        header = transfer_pb2.ParametersHeader(
            version=session.version,
            wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
            byte_count=format_.byte_count,
            layout_digest=self.layout.digest,
            layout=layout_to_wire(self.layout),
        )
        cuts = list(format_.cut(self.chunk_bytes, start))
        for offset, end in cuts:
            footer = None
            if end == format_.byte_count:
                footer = transfer_pb2.Footer(crc32c=crc32c(data))
            chunk = bytearray(data[offset:end])
            if self.damaged_chunks:
                self.damaged_chunks -= 1
                chunk[0] ^= 1
            yield header, memoryview(chunk), footer


def _bytes(message: object) -> bytes:
    return message.SerializeToString()  # type: ignore[attr-defined,no-any-return]


def _abort(context: grpc.ServicerContext, refusal: Refusal) -> None:
    if refusal.reason is not None:
        status = Status(code=refusal.code.value[0], message="as the script says")
        status.details.add().Pack(ErrorInfo(reason=refusal.reason, domain=refusal.domain))
        if refusal.retry_after is not None:
            delay = Duration()
            delay.FromNanoseconds(int(refusal.retry_after * 1e9))
            status.details.add().Pack(RetryInfo(retry_delay=delay))
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(refusal.code, "as the script says")
