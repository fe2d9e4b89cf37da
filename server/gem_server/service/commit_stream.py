"""The Commit call: any number of commits, one after the other, on one stream."""

from contextlib import closing
from dataclasses import dataclass

from gemps.framing import (
    COMMIT_REQUEST_CHUNK,
    COMMIT_RESPONSE_CHUNK,
    Buffer,
    ChunkPlace,
    parse_small,
    split_chunk,
)
from gemps.v1 import commit_pb2

from gem_core import WireType
from gem_server.errors import Reason, Refusal
from gem_server.flow.calls import Call
from gem_server.flow.committing import Committing, Footer, Header, Upload
from gem_server.flow.reading import superseded_by_newer_call
from gem_server.flow.requests import Applied
from gem_server.service import messages
from gem_server.service.answering import Answering, Attendance, Context
from gem_server.service.commit_connection import CommitConnection
from gem_server.service.reply_stream import put_header, send
from gem_server.state.sessions import Session

# commit.proto: such payloads travel in the header's message, without waiting.
WHOLE_COMMIT_BYTES = 64 * 1024


@dataclass(slots=True)
class _Part:
    """One message of the stream, taken apart."""

    header: commit_pb2.CommitHeader | None
    offset: int
    data: memoryview | None
    footer: Footer | None
    is_placed: bool = False  # the data lies where it belongs

    def may_be_whole(self, header: Header) -> bool:
        """Whether its chunk is the beginning of a payload that may travel so."""
        return not self.offset and header.byte_count <= WHOLE_COMMIT_BYTES


class CommitStream:
    """Serves Commit."""

    def __init__(self, answering: Answering, committing: Committing, chunk_bytes: int) -> None:
        self._answering = answering
        self._committing = committing
        self._chunk_bytes = chunk_bytes

    async def serve(self, _: object, context: Context) -> None:
        """One stream, until the worker ends it. An end in the midst of a commit discards that commit."""
        async with self._answering.stream(context) as (call, attendance):
            try:
                while (part := _take_apart(await attendance.idle(context.read()))) is not None:
                    await self._one_commit(context, call, attendance, part)
                    # A drain ends idle streams; this one was in the midst of a commit, and would be idle from here on.
                    self._answering.gate.check_not_draining()
            finally:
                session = attendance.session
                if session is not None and session.commit_call is call:
                    session.commit_call = None

    async def _one_commit(self, context: Context, call: Call, attendance: Attendance, part: _Part) -> None:
        if part.header is None:
            raise Refusal(Reason.OUT_OF_ORDER, "send a commit's header first; see the worked example in commit.proto")
        self._answering.check_access(context, "Commit")  # a stream may outlive its token
        session = attendance.attend(part.header.session_id)
        if session.commit_call is not call:
            older, session.commit_call = session.commit_call, call
            if older is not None:
                older.end(superseded_by_newer_call())
        header = messages.header_from(part.header)
        if not self._committing.is_next(session, header):
            applied = await self._committing.answer_repeat(session, call, header)
        elif header.wire_type is WireType.SHARED_MEMORY:
            applied = await self._take_shared(session, call, header, part)
        elif part.data is not None and part.footer is not None and part.may_be_whole(header):
            with await self._committing.stage_whole(session, call, header) as whole:
                applied = await whole.complete(part.data, part.footer)
        else:
            with await self._committing.stage(session, call, header) as staged:
                applied = await self._receive(context, staged, header, part)
        await self._reply(context, session, header, applied)

    async def _take_shared(self, session: Session, call: Call, header: Header, part: _Part) -> Applied:
        if part.data is not None or part.footer is not None:
            raise Refusal(
                Reason.OUT_OF_ORDER, "a commit whose header carries a handle has no chunk and no footer: send it alone"
            )
        with await self._committing.stage_shared(session, call, header) as staged:
            return await staged.complete()

    async def _receive(self, context: Context, staged: Upload, header: Header, part: _Part) -> Applied:
        if part.data is None and part.footer is None:
            await context.write(
                commit_pb2.CommitResponse(proceed=commit_pb2.Proceed(sequence=header.sequence)).SerializeToString()
            )
        elif header.byte_count > WHOLE_COMMIT_BYTES or part.footer is None:
            raise Refusal(
                Reason.OUT_OF_ORDER,
                f"a commit of {header.byte_count} bytes must send its header alone and wait for proceed; only payloads "
                f"of at most {WHOLE_COMMIT_BYTES} bytes travel whole in the header's message",
            )
        received: _Part | None = part
        place = ChunkPlace(COMMIT_REQUEST_CHUNK, staged.place)
        while True:
            if received is None:
                raise Refusal(
                    Reason.OUT_OF_ORDER,
                    "the stream ended without the commit's footer, and nothing was applied: send it again",
                )
            if received.is_placed and received.data is not None:
                staged.add_placed(received.offset, received.data.nbytes)
            elif received.data is not None:
                staged.add(received.offset, received.data)
            if received.footer is not None:
                return await staged.complete(received.footer)
            received = await _read(context, place)
            if received is not None and received.header is not None:
                raise Refusal(
                    Reason.OUT_OF_ORDER,
                    "a header came before the footer of the commit before it: finish one commit, then start the next",
                )

    async def _reply(self, context: Context, session: Session, header: Header, applied: Applied) -> None:
        session.check_alive()
        if applied.reader is None:
            raise superseded_by_newer_call()
        payload = self._committing.format(session.joining.parameter_wire_type)
        head = commit_pb2.CommitResponse()
        messages.put_verdict(applied.verdict, head.verdict)
        put_header(applied.reader, payload, head.parameters)
        if header.handle is not None and applied.reader.handle is not None:
            with closing(applied.reader):  # the worker reads by itself
                head.parameters.shared_memory.CopyFrom(messages.handle_to(applied.reader.handle))
                head.footer.byte_count = sent = payload.byte_count
                await context.write(head.SerializeToString())
        else:
            sent = await send(
                context,
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
            telemetry.bytes_received += self._committing.format(session.joining.delta_wire_type).byte_count


async def _read(context: Context, place: ChunkPlace) -> _Part | None:
    """The next message; at the commit port a large chunk is received where it belongs."""
    if not isinstance(context, CommitConnection):
        return _take_apart(await context.read())
    raw = await context.read(place)
    placed = place.taken()
    if placed is None or not isinstance(raw, bytes | memoryview):
        return _take_apart(raw)
    rest, offset = placed
    return _part_of(rest, offset, memoryview(raw), is_placed=True)


def _take_apart(raw: Buffer | object) -> _Part | None:
    """A message of the worker; None: it has sent its last."""
    if not isinstance(raw, bytes | memoryview):  # grpc.aio.EOF
        return None
    message = parse_small(commit_pb2.CommitRequest, raw)
    if message is not None:
        offset, data = 0, None
        if message.HasField("chunk"):
            offset, data = message.chunk.offset, memoryview(message.chunk.data)
        messages.check_size(commit_pb2.CommitRequest, len(raw) - len(data or b""))
    else:
        return _part_of(*split_chunk(raw, COMMIT_REQUEST_CHUNK))
    return _part(message, offset, data)


def _part_of(rest: bytes, offset: int, data: memoryview | None, *, is_placed: bool = False) -> _Part:
    """`rest`: the message's fields beside its chunk, serialised."""
    if not rest:
        return _Part(None, offset, data, None, is_placed)
    return _part(messages.parse(commit_pb2.CommitRequest, rest), offset, data, is_placed=is_placed)


def _part(message: commit_pb2.CommitRequest, offset: int, data: memoryview | None, *, is_placed: bool = False) -> _Part:
    return _Part(
        message.header if message.HasField("header") else None,
        offset,
        data,
        messages.footer_from(message.footer) if message.HasField("footer") else None,
        is_placed,
    )
