"""Pulls, and their repetition after a failure."""

from collections.abc import Iterator

import grpc
from gemps.framing import PULL_RESPONSE_CHUNK, FramingError, split_message
from gemps.limits import ADAPTER_BYTES, FIELDS_BYTES
from gemps.v1 import parameters_pb2

from gem_core.errors import CoreError
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_worker.client.channel import Calls
from gem_worker.client.errors import (
    NotInitializedError,
    ServerMisbehavedError,
    ServerRefusedError,
    TornCallError,
)
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.messages import Version
from gem_worker.client.receive import ParametersReceiver, Receiver
from gem_worker.client.rpc_status import failure
from gem_worker.client.session import LOST_SESSION, ClientSession
from gem_worker.client.watchdog import Watchdog, Watched

# The first message may contain the layout, which may be as long as in Join.
_HEADER_BYTES = MAX_CHUNK_BYTES + FIELDS_BYTES + ADAPTER_BYTES


def receive_pull(
    calls: Calls,
    watchdog: Watchdog,
    request: parameters_pb2.PullRequest,
    receiver: Receiver,
) -> parameters_pb2.NotModified | None:
    """Make one Pull. Returns NotModified if the server answers with it.

    After a TornCallError, `receiver` still has what arrived, unless it was damaged. Also raises ServerRefusedError.
    """
    with interrupts_wait():
        call = calls.pull(request)
        try:
            with interrupts_wait(call.cancel), watchdog.watch(call.cancel) as watched:
                return _receive(call, receiver, watched)
        finally:
            call.cancel()


def _receive(call: Iterator[bytes], receiver: Receiver, watched: Watched) -> parameters_pb2.NotModified | None:
    try:
        for message in call:
            watched.waiting = False
            watched.progress()
            fields, data = split_message(parameters_pb2.PullResponse, message, PULL_RESPONSE_CHUNK, _HEADER_BYTES)
            if fields.HasField("not_modified"):
                return fields.not_modified
            if fields.HasField("header"):
                if fields.header.HasField("base_version"):
                    raise ServerMisbehavedError("the server answers a pull with a difference of parameters")
                if fields.header.HasField("buffers"):
                    raise ServerMisbehavedError("the server leaves out BUFFERs in its answer to a pull")
                receiver.announce(fields.header)
            if data is not None:
                receiver.add(data)
            if fields.HasField("footer"):
                receiver.finish(fields.footer)
                return None
    except grpc.RpcError as error:
        reason = failure(error)
        if isinstance(reason, TornCallError) and watched.ended_because is not None:
            reason = TornCallError(watched.ended_because)
        raise reason from None
    except (CoreError, FramingError) as error:
        receiver.reset()
        raise TornCallError(f"the parameters arrived damaged: {error}") from error
    raise TornCallError("the stream ended without a footer")


class Puller:
    """The pulls of a session, each of which sets the session's snapshot."""

    def __init__(self, calls: Calls, watchdog: Watchdog, session: ClientSession) -> None:
        self._calls = calls
        self._watchdog = watchdog
        self._session = session
        self._wanted: Version | None = None

    def pull(self, into: memoryview, payload: PayloadFormat, wanted: Version | None = None) -> Version:
        """Pull the current parameters, or `wanted`, into `into`; return their version."""
        self._wanted = wanted
        session = self._session
        digest = session.membership.layout_digest
        version = self._bring(ParametersReceiver(payload, into, differences=session.differences, layout_digest=digest))
        self._wanted = None
        return version

    def complete(self, receiver: ParametersReceiver) -> Version:
        """Complete the reply to a commit after it broke off: resume if the snapshot has not changed, otherwise pull."""
        return self._bring(receiver)

    def _bring(self, receiver: ParametersReceiver) -> Version:
        session = self._session
        # The version is unknown until the transfer is complete.
        session.lost()
        while True:
            before = receiver.received
            try:
                receive_pull(self._calls, self._watchdog, self._request(receiver), receiver)
            except TornCallError as torn:
                if receiver.received > before:
                    session.patience.moved_on()
                session.patience.torn(torn)
            except ServerRefusedError as refusal:
                self._recover(refusal, receiver)
            else:
                version = session.version = self._done(receiver)
                return version

    def _request(self, receiver: ParametersReceiver) -> parameters_pb2.PullRequest:
        request = parameters_pb2.PullRequest(session_id=self._session.session_id)
        version = receiver.version or self._wanted
        if version is not None:
            request.resume_version.CopyFrom(version.to_wire())
            request.resume_offset = receiver.received
        return request

    def _recover(self, refusal: ServerRefusedError, receiver: ParametersReceiver) -> None:
        if refusal.reason == "STALE_BASE" and receiver.version is not None:
            self._session.stale(str(refusal))
            receiver.reset()
        elif refusal.reason in LOST_SESSION:
            receiver.reset()
            self._session.rejoin(str(refusal))
        elif isinstance(refusal, NotInitializedError):
            # The caller has to initialize() at once, because all other workers may be waiting for parameters.
            raise refusal
        else:
            self._session.patience.wait_as_asked(refusal)

    def _done(self, receiver: ParametersReceiver) -> Version:
        version = receiver.version
        if version is None:
            raise ServerMisbehavedError("the server answered not-modified to a pull that named no version")
        self._session.patience.succeeded()
        return version
