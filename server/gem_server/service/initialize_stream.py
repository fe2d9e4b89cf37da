"""The Initialize call."""

from typing import Any

from gemps.framing import INITIALIZE_REQUEST_CHUNK, Buffer, take_apart
from gemps.v1 import parameters_pb2

from gem_server.errors import Reason, Refusal
from gem_server.flow.calls import Call
from gem_server.flow.initializing import AlreadyInitializedError, Initializing
from gem_server.service import messages
from gem_server.service.answering import Answering, Attendance, Context
from gem_server.state.central_variable import CentralVariable


class InitializeStream:
    """Serves Initialize."""

    def __init__(self, answering: Answering, initializing: Initializing, central: CentralVariable) -> None:
        self._answering = answering
        self._initializing = initializing
        self._central = central

    async def serve(self, _: object, context: Context) -> bytes:
        """Receive an upload, unless another came first."""
        outcome = parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED
        async with self._answering.call(context) as (call, attendance):
            try:
                # Nested: AlreadyInitializedError gets a reply, no status.
                async with call.ending():
                    await self._receive(context, call, attendance)
            except AlreadyInitializedError:
                outcome = parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
            response = parameters_pb2.InitializeResponse(
                outcome=outcome, version=messages.version_to(self._central.version)
            )
            await self._answering.may_be_shown()
        return response.SerializeToString()

    async def _receive(self, context: Context, call: Call, attendance: Attendance) -> None:
        message, offset, data = _take_apart(await attendance.idle(context.read()))
        if not message.HasField("header"):
            raise Refusal(Reason.OUT_OF_ORDER, "send the header first; see parameters.proto")
        session = attendance.attend(message.header.session_id)
        with await self._initializing.stage(session, call, message.header.byte_count) as upload:
            while True:
                if data is not None:
                    upload.add(offset, data)
                if message.HasField("footer"):
                    await upload.complete(messages.footer_from(message.footer))
                    break
                message, offset, data = _take_apart(await context.read())
                if message.HasField("header"):
                    raise Refusal(Reason.OUT_OF_ORDER, "a second header: send one, then chunks and the footer")
        await self._initializing.stored()


def _take_apart(raw: Any) -> tuple[parameters_pb2.InitializeRequest, int, Buffer | None]:
    if not isinstance(raw, bytes):  # grpc.aio.EOF
        raise Refusal(Reason.OUT_OF_ORDER, "the stream ended without a footer, and nothing was taken: send it again")
    return take_apart(parameters_pb2.InitializeRequest, raw, INITIALIZE_REQUEST_CHUNK)
