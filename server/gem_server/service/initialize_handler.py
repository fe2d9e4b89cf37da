"""Serves the call Initialize."""

from typing import Any

from gemps.framing import INITIALIZE_REQUEST_CHUNK, Buffer, split_message
from gemps.limits import ADAPTER_BYTES, FIELDS_BYTES
from gemps.v1 import parameters_pb2

from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call, TornUploadError
from gem_server.flow.initialize_service import AlreadyInitializedError, InitializeService
from gem_server.service import messages
from gem_server.service.call_context import CallContexts, CallSession, Context
from gem_server.state.central_variable import CentralVariable


class InitializeHandler:
    """Serves Initialize."""

    def __init__(self, contexts: CallContexts, initialize_service: InitializeService, central: CentralVariable) -> None:
        self._contexts = contexts
        self._initialize_service = initialize_service
        self._central = central

    async def serve(self, _: object, context: Context) -> bytes:
        """Receive an upload, unless another came first."""
        outcome = parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED
        async with self._contexts.call(context) as (call, call_session):
            try:
                # AlreadyInitializedError is caught here, because it is answered with a reply and not with a status.
                async with call.ending():
                    await self._receive(context, call, call_session)
            except AlreadyInitializedError:
                await self._initialize_service.stored()
                outcome = parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
            response = parameters_pb2.InitializeResponse(
                outcome=outcome, version=messages.version_to(self._central.version)
            )
            await self._contexts.wait_durable()
        return response.SerializeToString()

    async def _receive(self, context: Context, call: Call, call_session: CallSession) -> None:
        message, data = _split_message(await call_session.idle(context.read()))
        if not message.HasField("header"):
            raise RefusedError(Reason.OUT_OF_ORDER, "send the header first; see parameters.proto")
        header = message.header
        if len(header.adapter) > ADAPTER_BYTES:
            raise RefusedError(
                Reason.MALFORMED, f"adapter has {len(header.adapter)} bytes: send at most {ADAPTER_BYTES}, or none"
            )
        session = call_session.attend(header.session_id)
        async with self._initialize_service.exclusively(session):
            with await self._initialize_service.stage(session, call, header.byte_count, header.adapter) as upload:
                while True:
                    if data is not None:
                        upload.add(data)
                    if message.HasField("footer"):
                        await upload.complete(message.footer.crc32c)
                        break
                    message, data = _split_message(await context.read())
                    if message.HasField("header"):
                        raise RefusedError(Reason.OUT_OF_ORDER, "a second header: send one, then chunks and the footer")
        await self._initialize_service.stored()


def _split_message(raw: Any) -> tuple[parameters_pb2.InitializeRequest, Buffer | None]:
    if not isinstance(raw, bytes):  # grpc.aio.EOF
        raise TornUploadError("the upload")
    limit = FIELDS_BYTES + ADAPTER_BYTES
    return split_message(parameters_pb2.InitializeRequest, raw, INITIALIZE_REQUEST_CHUNK, limit)
