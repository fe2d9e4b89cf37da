"""The Follow call: a secondary shard's connection, on the primary."""

import asyncio

from gemps.v1 import shards_pb2

from gem_core.shards import MAX_SHARDS, Shard
from gem_server.errors import Reason, RefusedError
from gem_server.service import messages, shard_messages
from gem_server.service.auth_interceptor import address_of
from gem_server.service.call_context import CallContexts, Context
from gem_server.shards.primary import PrimaryOrdering, Secondary


class FollowHandler:
    """Serves Follow; `ordering` is None unless this is a primary, `rule` as JSON."""

    def __init__(self, contexts: CallContexts, ordering: PrimaryOrdering | None, rule: str) -> None:
        self._contexts = contexts
        self._ordering = ordering
        self._rule = rule

    async def serve(self, _: object, context: Context) -> None:
        """Send operations until the connection breaks."""
        async with self._contexts.stream(context):
            hello = _read(await self._contexts.first_messages.wait(context.read()))
            ordering = self._ordering
            if ordering is None:
                raise RefusedError(
                    Reason.NOT_OFFERED, "this is no primary of shards: start it with --shard 0/N"
                )
            secondary = self._connect(ordering, hello, context)
            reading = asyncio.ensure_future(self._read_reports(ordering, secondary, context))
            writing = asyncio.ensure_future(_write_operations(secondary, context))
            try:
                done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                reading.cancel()
                writing.cancel()
                ordering.disconnected(secondary)

    def _connect(self, ordering: PrimaryOrdering, message: shards_pb2.FollowRequest, context: Context) -> Secondary:
        hello = message.hello
        if not message.HasField("hello") or not hello.shard < hello.shards <= MAX_SHARDS:
            raise RefusedError(Reason.MALFORMED, "Follow: send the hello first, with shard < shards")
        if hello.rule != self._rule:
            raise RefusedError(
                Reason.MALFORMED,
                f"this shard's update rule is {messages.text(hello.rule[:256], 'rule')}, and the primary's is "
                f"{self._rule}: give both the same --rule and settings",
            )
        address = messages.text(hello.address, "address", required=True)
        if address.startswith(":"):
            host = address_of(context).rpartition(":")[0]
            address = address if host.strip("[]") in ("127.0.0.1", "::1") else f"{host}{address}"
        return ordering.connect(Shard(hello.shard, hello.shards), address)

    async def _read_reports(self, ordering: PrimaryOrdering, secondary: Secondary, context: Context) -> None:
        while isinstance(raw := await context.read(), bytes):
            ordering.report(secondary, shard_messages.report_from(_read(raw)))


async def _write_operations(secondary: Secondary, context: Context) -> None:
    async for operation in secondary.operations():
        await context.write(shard_messages.operation_to(operation))


def _read(raw: object) -> shards_pb2.FollowRequest:
    if not isinstance(raw, bytes):  # grpc.aio.EOF
        raise RefusedError(Reason.MALFORMED, "Follow ended without a hello")
    return messages.parse(shards_pb2.FollowRequest, raw)
