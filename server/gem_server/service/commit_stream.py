"""The Commit call, over gRPC or the lane."""

from contextlib import closing
from typing import Protocol

from gemps.framing import COMMIT_RESPONSE_CHUNK, WHOLE_BYTES, Buffer
from gemps.v1 import commit_pb2

from gem_core import WireType
from gem_core.chunking import Assembler
from gem_server.errors import Reason, Refusal
from gem_server.flow.calls import Call
from gem_server.flow.committing import Committing, Footer, Header, StagedCommit
from gem_server.flow.reading import superseded_by_newer_call
from gem_server.flow.requests import Applied
from gem_server.service import messages
from gem_server.service.answering import Answering, Attendance, Context
from gem_server.service.grpc_transport import GrpcTransport
from gem_server.service.lane_connection import LaneConnection
from gem_server.service.reply_stream import PayloadWriter, put_header, send
from gem_server.state.sessions import Session


class CommitTransport(PayloadWriter, Protocol):
    """A gRPC stream or lane connection."""

    async def receive(self) -> tuple[commit_pb2.CommitRequest, int, Buffer | None] | None:
        """Return a commit's first message, chunk offset and data; None: end."""

    async def receive_into(self, sink: Assembler, proceed: bytes) -> Footer:
        """Send `proceed`, then read chunks until the footer. Raises Refusal and the sink's errors."""


class CommitStream:
    """Serves Commit."""

    def __init__(self, answering: Answering, committing: Committing, chunk_bytes: int) -> None:
        self._answering = answering
        self._committing = committing
        self._chunk_bytes = chunk_bytes

    async def serve(self, _: object, context: Context) -> None:
        """Serve a gRPC stream."""
        async with self._answering.stream(context) as (call, attendance):
            await self._serve(GrpcTransport(context), context, call, attendance)

    async def serve_lane(self, connection: LaneConnection) -> None:
        """Serve a lane connection after HELLO."""
        async with self._answering.call(connection) as (call, attendance):
            self._answering.check_access(connection, "Commit")
            session = attendance.attend(connection.session_id)
            _take_over(session, call)
            connection.welcome(messages.delta_bytes(session))
            await self._serve(connection, connection, call, attendance)

    async def _serve(
        self, transport: CommitTransport, context: Context | LaneConnection, call: Call, attendance: Attendance
    ) -> None:
        try:
            while (begun := await attendance.idle(transport.receive())) is not None:
                self._answering.check_access(context, "Commit")  # a stream may outlive its token
                await self._one_commit(transport, call, attendance, *begun)
                # A drain ends only idle streams.
                self._answering.gate.check_not_draining()
        finally:
            session = attendance.session
            if session is not None and session.commit_call is call:
                session.commit_call = None

    async def _one_commit(
        self,
        transport: CommitTransport,
        call: Call,
        attendance: Attendance,
        message: commit_pb2.CommitRequest,
        offset: int,
        data: Buffer | None,
    ) -> None:
        if not message.HasField("header"):
            raise Refusal(Reason.OUT_OF_ORDER, "send a commit's header first; see the worked example in commit.proto")
        session = attendance.attend(message.header.session_id)
        _take_over(session, call)
        header = messages.header_from(message.header)
        footer = messages.footer_from(message.footer) if message.HasField("footer") else None
        if not self._committing.is_next(session, header):
            applied = await self._committing.answer_repeat(session, call, header)
        else:
            if data is None:
                self._committing.admit(session, header)
            with await self._committing.stage(session, call, header) as staged:
                applied = await self._receive(transport, staged, offset, data, footer)
        await self._reply(transport, session, header, applied)

    async def _receive(
        self, transport: CommitTransport, staged: StagedCommit, offset: int, data: Buffer | None, footer: Footer | None
    ) -> Applied:
        header = staged.header
        comes_alone = data is None and footer is None
        if header.wire_type is WireType.SHARED_MEMORY:
            if not comes_alone:
                raise Refusal(
                    Reason.OUT_OF_ORDER,
                    "a commit whose header carries a handle has no chunk and no footer: send it alone",
                )
            return await staged.complete_shared()
        if comes_alone:
            proceed = commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=header.sequence))
            footer = await transport.receive_into(staged.sink, proceed.SerializeToString())
        elif header.byte_count > WHOLE_BYTES or footer is None:
            raise Refusal(
                Reason.OUT_OF_ORDER,
                f"a commit of {header.byte_count} bytes must send its header alone and wait for proceed; only payloads "
                f"of at most {WHOLE_BYTES} bytes travel whole in the header's message",
            )
        elif data is not None:
            staged.sink.add(offset, data)
        return await staged.complete(footer)

    async def _reply(self, transport: CommitTransport, session: Session, header: Header, applied: Applied) -> None:
        session.check_alive()
        if applied.reader is None:
            raise superseded_by_newer_call()
        payload = self._committing.format(session.joining.parameter_wire_type)
        head = commit_pb2.CommitResponse()
        messages.put_verdict(applied.verdict, head.verdict)
        put_header(applied.reader, payload, head.parameters)
        if header.handle is not None and applied.reader.handle is not None:
            with closing(applied.reader):
                head.parameters.shared_memory.CopyFrom(messages.handle_to(applied.reader.handle))
                head.footer.byte_count = sent = payload.byte_count
                await transport.write(head.SerializeToString(), b"", last=True)
        else:
            sent = await send(
                transport,
                applied.reader,
                payload,
                b"",
                head=head,
                chunk_field=COMMIT_RESPONSE_CHUNK,
                chunk_bytes=self._chunk_bytes,
            )
        telemetry = session.worker.telemetry
        telemetry.bytes_sent += sent
        if not applied.verdict.duplicate:
            telemetry.bytes_received += header.byte_count


def _take_over(session: Session, call: Call) -> None:
    """End the session's older Commit call."""
    if session.commit_call is not call:
        older, session.commit_call = session.commit_call, call
        if older is not None:
            older.end(superseded_by_newer_call())
