"""The Follow call: a secondary shard's connection, on the primary."""

import asyncio
import json
from dataclasses import replace

from gemps.limits import FIELDS_BYTES
from gemps.v1 import shards_pb2

from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.service import messages, shard_messages
from gem_server.service.auth_interceptor import address_of
from gem_server.service.call_context import CallContexts, Context
from gem_server.service.status_codes import abort
from gem_server.shards.operations import Hello
from gem_server.shards.primary import PrimaryOrder, Secondary

# For recovery.MAX_CLOCKS, and MAX_TOGETHER reports.
REQUEST_BYTES = 64 << 10
SHOWN = 100  # characters of a secondary's setting


class FollowHandler:
    """Serves Follow; `ordering` is None unless this is a primary, `rule`: settings in common, as JSON."""

    def __init__(self, contexts: CallContexts, ordering: PrimaryOrder | None, rule: str) -> None:
        self._contexts = contexts
        self._ordering = ordering
        self._rule = rule

    async def follow(self, _: object, context: Context) -> None:
        """Send operations until the connection breaks. Begins before the server is ready."""
        await context.send_initial_metadata(())
        call = Call()
        try:
            async with call.ending():
                await self._follow(context)
        except RefusedError as refusal:
            await abort(context, refusal)

    async def _follow(self, context: Context) -> None:
        ordering = self._ordering
        limit = REQUEST_BYTES if ordering is not None else FIELDS_BYTES
        hello = _parsed(await self._contexts.first_messages.wait(context.read()), limit)
        if ordering is None:
            raise RefusedError(Reason.NOT_OFFERED, "this is no primary of shards: start it with --shard 0/N")
        secondary = ordering.connect(self._checked(shard_messages.hello_from(hello), context))
        reading = asyncio.ensure_future(self._read_reports(ordering, secondary, context))
        writing = asyncio.ensure_future(_write_operations(ordering, secondary, context))
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reading.cancel()
            writing.cancel()
            ordering.disconnected(secondary)

    def _checked(self, hello: Hello, context: Context) -> Hello:
        if hello.rule != self._rule:
            raise RefusedError(
                Reason.MALFORMED,
                f"this shard differs from the primary in {_difference(hello.rule, self._rule)}: give both the same "
                "--rule, its settings, limits.staging_buffers and --durability, and --data-dir to all shards "
                "or none",
            )
        host = address_of(context).rpartition(":")[0]
        if hello.address.startswith(":") and host.strip("[]") not in ("127.0.0.1", "::1"):
            return replace(hello, address=f"{host}{hello.address}")
        return hello

    async def _read_reports(self, ordering: PrimaryOrder, secondary: Secondary, context: Context) -> None:
        while isinstance(raw := await context.read(), bytes):
            for report in _parsed(raw, REQUEST_BYTES).reports:
                ordering.handle(secondary, shard_messages.report_from(report))


async def _write_operations(ordering: PrimaryOrder, secondary: Secondary, context: Context) -> None:
    await context.write(shard_messages.begin_to(await ordering.wait_begin()))
    async for operations in secondary.operations():
        await context.write(shard_messages.operations_to(operations))


def _parsed(raw: object, limit: int) -> shards_pb2.FollowRequest:
    if not isinstance(raw, bytes):  # grpc.aio.EOF
        raise RefusedError(Reason.MALFORMED, "Follow ended without a hello")
    return messages.parse(shards_pb2.FollowRequest, raw, limit)


def _difference(own: str, primary: str) -> str:
    expected = json.loads(primary)
    try:
        found = json.loads(own)
        return ", ".join(
            f"{name}, {json.dumps(found.get(name))[:SHOWN]}, not {json.dumps(value)}"
            for name, value in expected.items()
            if found.get(name) != value
        )
    except (ValueError, RecursionError, AttributeError):  # no object, or too deep
        return f"{own[:SHOWN]!r}, not {primary}"
