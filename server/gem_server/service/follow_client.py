"""A secondary shard's connection to the primary."""

import asyncio
import contextlib
import logging
from typing import Any, TypeAlias

import grpc
from gemps.limits import MESSAGE_BYTES
from gemps.v1 import shards_pb2
from google.protobuf.message import Message

from gem_server import __version__
from gem_server.errors import StartupError
from gem_server.security.shard_credentials import ShardCredentials
from gem_server.service import shard_messages
from gem_server.service.layouts import Layouts
from gem_server.shards.operations import MAX_TOGETHER, Begin, Hello, Operation, Ready, Report
from gem_server.shards.primary import ShardLostError
from gem_server.shards.secondary import SecondaryOrder

_FOLLOW = "/gemps.v1.ShardService/Follow"
# Pings find a primary that is dead. Servers accept one every 30 s.
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
)
RETRY_SECONDS = 0.5
_FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

_Call: TypeAlias = "grpc.aio.StreamStreamCall[Message, shards_pb2.FollowResponse]"

logger = logging.getLogger(__name__)


class FollowClient:
    """Receives the primary's operations."""

    def __init__(
        self,
        primary: str,
        hello: Hello,
        ordering: SecondaryOrder,
        layouts: Layouts,
        credentials: ShardCredentials,
    ) -> None:
        self._primary = primary
        self._hello = shard_messages.hello_to(hello)
        self._ordering = ordering
        self._layouts = layouts
        token = credentials.token
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        ordering.report = self._reports.put_nowait
        self._channel = self._open_channel(credentials)
        self._call: _Call | None = None

    async def wait_begin(self) -> Begin:
        """Connect, and wait until the primary and all shards are there.

        Raises StartupError if the primary refuses this shard.
        """
        method = self._channel.stream_stream(
            _FOLLOW,
            request_serializer=shards_pb2.FollowRequest.SerializeToString,
            response_deserializer=shards_pb2.FollowResponse.FromString,
        )
        told = ""
        while True:
            self._call = method(metadata=self._metadata)
            try:
                await self._call.write(self._hello)
                message: Any = await self._call.read()
                if message is not grpc.aio.EOF:
                    return shard_messages.begin_from(message)
                raise StartupError(f"the primary {self._primary} refuses this shard: {await self._call.details()}")
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise StartupError(
                        f"what answers at {self._primary} does not offer {_FOLLOW}: start all shards with the same "
                        f"version of gemps (this one is {__version__})"
                    ) from None
                if error.code() in _FINAL:
                    raise StartupError(f"the primary {self._primary} refuses this shard: {error.details()}") from None
                if told != (told := str(error.details())):
                    logger.info("waiting for the primary %s: %s", self._primary, told)
            except asyncio.InvalidStateError:  # grpc.aio: write after the call ended
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def follow(self) -> None:
        """Receive operations until the connection ends. Raises ShardLostError, OutOfOrderError."""
        call = self._call
        if call is None:
            raise AssertionError("wait_begin() first")
        self._reports.put_nowait(Ready())
        reporting = asyncio.ensure_future(self._report(call))
        try:
            while True:
                message: Any = await call.read()
                if message is grpc.aio.EOF:
                    raise ShardLostError(f"the primary {self._primary} ended")
                for encoded in message.operations:
                    operation = await self._decode(encoded)
                    if operation is None:
                        raise ShardLostError("the primary has a newer version of gemps: update this shard")
                    self._ordering.receive(operation)
        except grpc.aio.AioRpcError as error:
            raise ShardLostError(f"the primary {self._primary} disconnected: {error.details()}") from None
        finally:
            reporting.cancel()

    async def _decode(self, message: shards_pb2.Operation) -> Operation | None:
        if not message.HasField("session_joined"):
            return shard_messages.operation_from(message)
        joined = message.session_joined
        layout = await self._layouts.decode(memoryview(joined.layout.SerializeToString()))
        return shard_messages.joined_from(joined, layout)

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()

    def _open_channel(self, credentials: ShardCredentials) -> grpc.aio.Channel:
        ca, certificate, key, _ = credentials
        if not ca:
            return grpc.aio.insecure_channel(self._primary, options=_OPTIONS)
        tls = grpc.ssl_channel_credentials(ca, key or None, certificate or None)
        return grpc.aio.secure_channel(self._primary, tls, options=_OPTIONS)

    async def _report(self, call: _Call) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # `_receive` gets the status
            while True:
                reports = [await self._reports.get()]
                while len(reports) < MAX_TOGETHER and not self._reports.empty():
                    reports.append(self._reports.get_nowait())
                await call.write(shard_messages.reports_to(reports))
