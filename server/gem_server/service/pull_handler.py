"""Serves the call Pull."""

from collections.abc import Callable

from gemps.framing import PULL_RESPONSE_CHUNK
from gemps.v1 import parameters_pb2

from gem_core import WireType
from gem_server.errors import Reason, RefusedError
from gem_server.flow.pull_service import PullService, Wanted
from gem_server.flow.reader import end_open_commit
from gem_server.flow.requests import Unchanged
from gem_server.security.access import PULL_WITH_SESSION
from gem_server.service import messages
from gem_server.service.call_context import CallContexts, Context
from gem_server.service.grpc_transport import GrpcTransport
from gem_server.service.reply_stream import ReplyStream
from gem_server.state.central_variable import CentralVariable
from gem_server.state.run import Run
from gem_server.state.sessions import Session


class PullHandler:
    """Serves Pull. `addresses` are those of the other shards."""

    def __init__(
        self,
        contexts: CallContexts,
        pull_service: PullService,
        central: CentralVariable,
        run: Run,
        chunk_bytes: int,
        addresses: Callable[[], list[str]],
    ) -> None:
        self._contexts = contexts
        self._pull_service = pull_service
        self._central = central
        self._run = run
        self._chunk_bytes = chunk_bytes
        self._addresses = addresses

    async def serve(self, raw: bytes, context: Context) -> None:
        """Stream parameters, or reply NotModified."""
        async with self._contexts.stream(context) as (call, call_session):
            request = messages.parse(parameters_pb2.PullRequest, raw)
            if request.session_id:
                self._contexts.check_access(context, PULL_WITH_SESSION)
            session = call_session.attend(request.session_id) if request.session_id else None
            if session is not None:
                end_open_commit(session)
            wanted = _wanted(request, session)
            outcome = await self._pull_service.open(session, call, wanted)
            if isinstance(outcome, Unchanged):
                state = self._run.state if session is None else self._run.state_for(session.worker)
                not_modified = parameters_pb2.NotModified(
                    version=messages.version_to(outcome.version), run_state=messages.RUN_STATES[state]
                )
                await context.write(parameters_pb2.PullResponse(not_modified=not_modified).SerializeToString())
                return
            payload = self._pull_service.format(wanted.wire_type)
            copy = session.copy if session is not None else None
            stream = ReplyStream(outcome, payload, self._chunk_bytes, offset=wanted.resume_offset, copy=copy)
            head = parameters_pb2.PullResponse()
            stream.put_header(head.header)
            if request.with_layout:
                head.header.layout.MergeFromString(messages.layout_to(payload.layout.whole))
                head.header.shards.extend(self._addresses())
                head.header.adapter = self._central.adapter
            sent = await stream.send(
                GrpcTransport(context),
                head=head,
                chunk_field=PULL_RESPONSE_CHUNK,
                head_is_large=request.with_layout,
            )
            if session is not None:
                session.worker.telemetry.bytes_sent += sent


def _wanted(request: parameters_pb2.PullRequest, session: Session | None) -> Wanted:
    if session is not None:
        settled = session.join_info.parameter_wire_type
        if request.wire_type not in (0, int(settled), int(settled.of_whole)):
            raise RefusedError(
                Reason.WIRE_TYPE,
                f"this session settled on {settled.name} for parameters when it joined: leave it unset",
            )
        wire_type = settled.of_whole
    else:
        wire_type = messages.wire_type_from(request.wire_type) if request.wire_type else WireType.FLOAT32
    resume = messages.version_from(request.resume_version) if request.HasField("resume_version") else None
    if resume is None and request.resume_offset:
        raise RefusedError(Reason.MALFORMED, "resume_offset needs resume_version: set both, or neither")
    return Wanted(
        messages.version_from(request.known_version) if request.HasField("known_version") else None,
        resume,
        request.resume_offset,
        wire_type,
        request.clock,
    )
