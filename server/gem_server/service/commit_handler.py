"""Serves the call Commit, over gRPC or the lane."""

import asyncio
from contextlib import closing
from typing import Protocol

from gemps.framing import COMMIT_RESPONSE_CHUNK, Buffer
from gemps.limits import WHOLE_PAYLOAD_BYTES
from gemps.v1 import commit_pb2

from gem_core import WireType
from gem_core.chunking import Assembler
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call, TornUploadError
from gem_server.flow.commit_service import CommitService, Header, StagedCommit
from gem_server.flow.reader import superseded_by_newer_call
from gem_server.flow.requests import Applied
from gem_server.flow.staging_pool import StagingPool
from gem_server.service import messages
from gem_server.service.call_context import DISCONNECTED, CallContexts, CallSession, Context
from gem_server.service.grpc_transport import GrpcTransport, too_large_first_message
from gem_server.service.lane_connection import LaneConnection
from gem_server.service.reply_stream import PayloadWriter, ReplyStream
from gem_server.service.status_codes import as_refusal
from gem_server.state.run import RunState
from gem_server.state.sessions import Session, TransportKind

RETRY_SECONDS = 0.1


class CommitTransport(PayloadWriter, Protocol):
    """A stream of commits, which is a gRPC stream or a lane connection."""

    @property
    def kind(self) -> TransportKind:
        """Whether commits come over gRPC or the lane."""

    async def receive(self) -> tuple[commit_pb2.CommitRequest, Buffer | None] | None:
        """Receive a commit's first message, and its chunk's data. None at the end of the stream."""

    async def receive_into(self, sink: Assembler, proceed: bytes) -> int:
        """Send `proceed`, if it is not None, then read chunks until the footer. Returns the footer's CRC32C.

        Raises RefusedError and the sink's errors.
        """


class EarlyProceed:
    """The proceed that one stream's last reply had for its next commit, if any (commit.proto).

    It does not reserve the promised buffer. If others have taken all buffers when the commit comes, it stays unread
    until one is free.
    """

    def __init__(self, staging: StagingPool) -> None:
        self._staging = staging
        self._sequence = 0  # 0: none

    def promise(self, sequence: int) -> bool:
        """Promise a buffer to the commit with this sequence. Returns False if no buffer is free."""
        if self._staging.promise():
            self._sequence = sequence
        return bool(self._sequence)

    def take(self) -> int:
        """End the promise, and return its sequence. Returns 0 if there was none."""
        sequence, self._sequence = self._sequence, 0
        if sequence:
            self._staging.promise_ends()
        return sequence


class CommitHandler:
    """Serves Commit."""

    def __init__(
        self, contexts: CallContexts, commit_service: CommitService, staging: StagingPool, chunk_bytes: int
    ) -> None:
        self._contexts = contexts
        self._commit_service = commit_service
        self._staging = staging
        self._chunk_bytes = chunk_bytes

    async def serve(self, _: object, context: Context) -> None:
        """Serve a gRPC stream."""
        async with self._contexts.stream(context) as (call, call_session):
            await self._serve(GrpcTransport(context), context, call, call_session)

    async def serve_lane(self, connection: LaneConnection) -> None:
        """Serve a lane connection after HELLO."""
        async with self._contexts.call(connection) as (call, call_session):
            self._contexts.check_access(connection, "Commit")
            session = call_session.attend(connection.session_id)
            _supersede_older_call(session, call)
            connection.welcome(*messages.delta_bytes(session))
            await self._serve(connection, connection, call, call_session)

    async def _serve(
        self, transport: CommitTransport, context: Context | LaneConnection, call: Call, call_session: CallSession
    ) -> None:
        early = EarlyProceed(self._staging)
        try:
            while (begun := await call_session.idle(transport.receive())) is not None:
                self._contexts.check_access(context, "Commit")  # a stream may outlive its token
                await self._one_commit(transport, call, call_session, early, *begun)
                # A drain ends only idle streams.
                self._contexts.gate.check_not_draining()
        finally:
            early.take()
            session = call_session.session
            if session is not None and session.commit_call is call:
                session.commit_call = None

    async def _one_commit(
        self,
        transport: CommitTransport,
        call: Call,
        call_session: CallSession,
        early: EarlyProceed,
        message: commit_pb2.CommitRequest,
        data: Buffer | None,
    ) -> None:
        if not message.HasField("header"):
            raise RefusedError(
                Reason.OUT_OF_ORDER, "send a commit's header first; see the worked example in commit.proto"
            )
        session = call_session.attend(message.header.session_id)
        _supersede_older_call(session, call)
        header = messages.header_from(message.header)
        footer = message.footer.crc32c if message.HasField("footer") else None
        may_go_on = early.take() == header.sequence
        if not self._commit_service.is_next(session, header):
            applied = await self._commit_service.answer_repeat(session, call, header)
        else:
            try:
                if data is None:
                    self._commit_service.admit(session, header)
                with await self._commit_service.stage(session, call, header) as staged:
                    applied = await self._receive(transport, staged, data, footer, may_go_on=may_go_on)
            except (Exception, asyncio.CancelledError) as error:
                # A newer call of the session may be sending the same commit; the end of this one must not end that.
                if session.commit_call is call:
                    self._commit_service.refused(session, header, _for_other_shards(call.reason or error))
                raise
        await self._reply(transport, session, header, applied, early)

    async def _receive(
        self,
        transport: CommitTransport,
        staged: StagedCommit,
        data: Buffer | None,
        footer: int | None,
        *,
        may_go_on: bool,
    ) -> Applied:
        header = staged.header
        comes_alone = data is None and footer is None
        if header.wire_type is WireType.SHARED_MEMORY:
            if not comes_alone:
                raise RefusedError(
                    Reason.OUT_OF_ORDER,
                    "a commit whose header carries a handle has no chunk and no footer: send it alone",
                )
            return await staged.complete_shared()
        if comes_alone:
            proceed = commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=header.sequence))
            footer = await transport.receive_into(staged.sink, b"" if may_go_on else proceed.SerializeToString())
        elif header.byte_count > WHOLE_PAYLOAD_BYTES or footer is None:
            raise too_large_first_message()
        elif data is not None:
            staged.sink.add(data)
        return await staged.complete(footer)

    async def _reply(
        self, transport: CommitTransport, session: Session, header: Header, applied: Applied, early: EarlyProceed
    ) -> None:
        session.check_alive()
        session.transport = transport.kind if header.handle is None else TransportKind.SHARED_MEMORY
        if applied.reader is None:
            raise superseded_by_newer_call()
        wire_type, copy = session.join_info.parameter_wire_type, session.copy
        # Before a repeat, a reply may be lost.
        base = copy.version if copy is not None and not applied.verdict.duplicate else None
        payload = self._commit_service.format(wire_type.of_whole if base is None else wire_type, applied.buffers)
        stream = ReplyStream(applied.reader, payload, self._chunk_bytes, copy=copy, base=base)
        head = commit_pb2.CommitResponse()
        messages.put_verdict(applied.verdict, head.verdict)
        stream.put_header(head.parameters)
        if header.handle is not None and applied.reader.handle is not None:
            with closing(applied.reader):
                head.parameters.shared_memory.CopyFrom(messages.handle_to(applied.reader.handle))
                head.footer.SetInParent()
                sent = payload.byte_count
                await transport.write(head.SerializeToString(), b"", last=True)
        else:

            def before_last(message: commit_pb2.CommitResponse) -> None:
                is_large = header.handle is None and header.byte_count > WHOLE_PAYLOAD_BYTES
                goes_on = applied.verdict.run_state is not RunState.FINISHED and not self._contexts.gate.draining
                if session.takes_early_proceed and is_large and goes_on and early.promise(header.sequence + 1):
                    message.proceed.sequence = header.sequence + 1

            sent = await stream.send(transport, head=head, chunk_field=COMMIT_RESPONSE_CHUNK, before_last=before_last)
        telemetry = session.worker.telemetry
        telemetry.bytes_sent += sent
        if not applied.verdict.duplicate:
            telemetry.bytes_received += header.byte_count


def _for_other_shards(error: Exception | asyncio.CancelledError) -> RefusedError:
    """Return the refusal for the other shards' pieces of a commit, after an attempt ended here with `error`.

    A lost call does not mean that the commit is wrong, so the other shards ask for their pieces again. Any other error
    is the refusal of the commit on all shards, because the others would otherwise wait for a piece that does not come.
    """
    is_newer_call = isinstance(error, RefusedError) and error.reason is Reason.NEWER_CALL
    if is_newer_call or isinstance(error, (TornUploadError, DISCONNECTED)):
        return RefusedError(
            Reason.STALLED, "another shard lost this worker's call: send the commit again", retry_after=RETRY_SECONDS
        )
    return as_refusal(error)


def _supersede_older_call(session: Session, call: Call) -> None:
    if session.commit_call is not call:
        older, session.commit_call = session.commit_call, call
        if older is not None:
            older.end(superseded_by_newer_call())
