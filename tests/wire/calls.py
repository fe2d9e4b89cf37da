"""Calls of the service from its descriptor, on grpc.aio, taking generated messages or raw bytes."""

import asyncio
import ssl
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
from gemps.v1 import observer_pb2, shards_pb2, worker_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.wire.refusals import PATIENCE

SERVICES = tuple(
    one for file in (worker_pb2, observer_pb2, shards_pb2) for one in file.DESCRIPTOR.services_by_name.values()
)
METHODS = {method.name: method for service in SERVICES for method in service.methods}
# What grpc.aio (1.85.1) puts in the place of the server's status, before or after that came, when a write meets the
# call's end.
_NOT_THE_SERVERS_STATUS = "Internal error from Core"


class Trust:
    """What servers and their clients are started with; without an authority they speak no TLS."""

    authority: Path | None = None
    of_servers: Mapping[str, str] = MappingProxyType({})


def tls_context() -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=Trust.authority) if Trust.authority is not None else None


def open_channel(address: str, *, reads_ahead: bool = True) -> grpc.aio.Channel:
    """A channel with a connection of its own and gRPC's default limits: what a client unconfigured would have.

    Without reading ahead, a server that writes more than some 64 KiB has to wait until the client reads.
    """
    options = [("grpc.use_local_subchannel_pool", 1)]
    if not reads_ahead:
        options += [("grpc.http2.lookahead_bytes", 65_535), ("grpc.http2.bdp_probe", 0)]
    if Trust.authority is not None:
        credentials = grpc.ssl_channel_credentials(Trust.authority.read_bytes())
        return grpc.aio.secure_channel(address, credentials, options=options)
    return grpc.aio.insecure_channel(address, options=options)


def path_of(method: str) -> str:
    """How gRPC names a method of the services: "/gemps.v1.WorkerService/Join"."""
    return f"/{METHODS[method].containing_service.full_name}/{method}"


def _to_bytes(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


class Stub:
    """One attribute a method of the services: stub.Join(request), stub.Commit(), ..."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        for method in METHODS.values():
            request_kind = "stream" if method.client_streaming else "unary"
            response_kind = "stream" if method.server_streaming else "unary"
            setattr(
                self,
                method.name,
                getattr(channel, f"{request_kind}_{response_kind}")(
                    path_of(method.name),
                    request_serializer=_to_bytes,
                    response_deserializer=GetMessageClass(method.output_type).FromString,
                ),
            )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name}")


class Stream:
    """A streaming call, one message at a time; the server's status is never lost to a write that came too late."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note_status)

    async def send(self, message: Message | bytes) -> None:
        """Sends one message; if the server has ended the call already, the next receive() says so."""
        try:
            await asyncio.wait_for(self.call.write(message), PATIENCE)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            assert self.call.done()

    async def receive(self, patience: float = PATIENCE) -> Any:
        """The next message, or None when the server ended the call with OK; raises AioRpcError otherwise."""
        try:
            message = await asyncio.wait_for(self.call.read(), patience)
        except grpc.aio.AioRpcError:
            raise await asyncio.wait_for(self._servers_error(), PATIENCE) from None
        return None if message is grpc.aio.EOF else message

    async def answer(self) -> Any:
        """The one response of a client-streaming call."""
        try:
            return await asyncio.wait_for(self.call, PATIENCE)
        except grpc.aio.AioRpcError:
            raise await asyncio.wait_for(self._servers_error(), PATIENCE) from None

    async def half_close(self) -> None:
        try:
            await self.call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            assert self.call.done()

    def cancel(self) -> None:
        self.call.cancel()

    def _note_status(self, call: Any) -> None:
        """Called when a status is set for the first time; the server's may be the first one or the second."""
        details = _result_of(call.details())
        if details != _NOT_THE_SERVERS_STATUS:
            self._error = grpc.aio.AioRpcError(
                _result_of(call.code()),
                _result_of(call.initial_metadata()),
                _result_of(call.trailing_metadata()),
                details,
            )

    async def _servers_error(self) -> grpc.aio.AioRpcError:
        while self._error is None:
            await asyncio.sleep(0)
            self._note_status(self.call)
        return self._error


def _result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value
    raise AssertionError("the call has no status yet")


async def answer_to(stub: Stub, method: str, message: bytes) -> Any:
    """The first answer to a call that begins with this message; of whatever kind the call is."""
    call = getattr(stub, method)
    if method in ("Commit", "Follow", "Initialize"):
        stream = Stream(call())
        await stream.send(message)
        return await (stream.answer() if method == "Initialize" else stream.receive())
    return await (Stream(call(message)).receive() if method in ("Pull", "WatchStatus") else call(message))
