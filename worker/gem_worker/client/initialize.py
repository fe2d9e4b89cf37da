"""Upload of the first parameters."""

import grpc
from gemps.framing import INITIALIZE_REQUEST_CHUNK
from gemps.v1 import parameters_pb2

from gem_core.chunking import ScaledSplitter
from gem_core.payload import PayloadFormat
from gem_worker.client.channel import Calls
from gem_worker.client.errors import ServerMisbehavedError, ServerRefusedError, TornCallError
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.rpc_status import failure
from gem_worker.client.send import watched_messages
from gem_worker.client.session import LOST_SESSION, ClientSession
from gem_worker.client.watchdog import Watchdog


def initialize(
    calls: Calls,
    watchdog: Watchdog,
    session: ClientSession,
    payload: memoryview,
    format_: PayloadFormat,
    adapter: bytes,
) -> bool:
    """Upload `payload` (PARAMETERs as float32, BUFFERs). Returns whether it became the first parameters.

    False may mean that an earlier attempt of this upload succeeded. Pull next in both cases.
    """
    while True:
        try:
            response = _upload(calls, watchdog, session, payload, format_, adapter)
        except TornCallError as torn:
            session.patience.torn(torn)
        except ServerRefusedError as refusal:
            if refusal.reason in LOST_SESSION:
                session.rejoin(str(refusal))
            else:
                session.patience.wait_as_asked(refusal)
        else:
            session.patience.succeeded()
            return _is_accepted(response)


def _upload(
    calls: Calls,
    watchdog: Watchdog,
    session: ClientSession,
    payload: memoryview,
    format_: PayloadFormat,
    adapter: bytes,
) -> parameters_pb2.InitializeResponse:
    header = parameters_pb2.InitializeHeader(
        session_id=session.session_id, byte_count=format_.byte_count, adapter=adapter
    )
    # gRPC asks for the first message before this function has the call.
    with watchdog.watch(lambda: None) as watched, interrupts_wait(lambda: watched.cancel()):
        watched.waiting = False
        messages = watched_messages(
            ScaledSplitter(format_, session.membership.chunk_bytes).load(payload),
            INITIALIZE_REQUEST_CHUNK,
            parameters_pb2.InitializeRequest(header=header),
            watched,
        )
        call = calls.initialize.future(b"".join(message[:2]) for message in messages)
        watched.cancel = call.cancel
        try:
            return call.result()
        except grpc.FutureCancelledError:
            raise TornCallError(watched.ended_because or "CANCELLED") from None
        except grpc.RpcError as error:
            raise failure(error) from None
        finally:
            call.cancel()


def _is_accepted(response: parameters_pb2.InitializeResponse) -> bool:
    if response.outcome == parameters_pb2.INITIALIZE_OUTCOME_ACCEPTED:
        return True
    if response.outcome == parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED:
        return False
    raise ServerMisbehavedError(f"the server answered an upload with outcome {response.outcome}: update this client")
