"""Which method is served by what; messages go in and out as bytes, so that sizes are checked before parsing."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import grpc
from gemps.v1 import parameter_server_pb2

from gem_server.errors import Reason, Refusal
from gem_server.service.commit_stream import CommitStream
from gem_server.service.first_message import FirstMessages
from gem_server.service.health import SERVICE as HEALTH
from gem_server.service.health import Health
from gem_server.service.history import History
from gem_server.service.initialize_stream import InitializeStream
from gem_server.service.membership import Membership
from gem_server.service.operations import Operations
from gem_server.service.pull_stream import PullStream
from gem_server.service.status import Status
from gem_server.service.status_codes import abort

SERVICE = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"].full_name

Service: TypeAlias = grpc.GenericRpcHandler
Method: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


def handlers(
    first: FirstMessages,
    membership: Membership,
    initialize: InitializeStream,
    pull: PullStream,
    commit: CommitStream,
    status: Status,
    history: History,
    operations: Operations,
) -> Service:
    """The service."""
    answers: dict[str, Method] = {
        "Join": membership.join,
        "Heartbeat": membership.heartbeat,
        "Leave": membership.leave,
        "GetStatus": status.get,
        "GetHistory": history.get,
        "ReportEvaluation": operations.report_evaluation,
        "Control": operations.control,
    }
    streams: dict[str, Method] = {"Pull": pull.serve, "WatchStatus": status.watch}
    return _service(SERVICE, first, answers, streams, {"Initialize": initialize.serve}, {"Commit": commit.serve})


def health_handlers(first: FirstMessages, health: Health) -> Service:
    """The service of grpc.health.v1."""
    return _service(HEALTH, first, {"Check": health.check}, {"Watch": health.watch})


def _service(
    name: str,
    first: FirstMessages,
    answers: dict[str, Method],
    streams: dict[str, Method],
    reading_answers: Mapping[str, Method] = MappingProxyType({}),
    reading_streams: Mapping[str, Method] = MappingProxyType({}),
) -> Service:
    """Methods that give one answer, and that give many; those that read their requests themselves.

    All are streams of requests to gRPC, which would wait for ever for the one request of another kind.
    """
    answering = {name: _given_first(first, method) for name, method in answers.items()} | {**reading_answers}
    streaming = {name: _given_first(first, method) for name, method in streams.items()} | {**reading_streams}
    return grpc.method_handlers_generic_handler(
        name,
        {name: grpc.stream_unary_rpc_method_handler(_let_go(method)) for name, method in answering.items()}
        | {name: grpc.stream_stream_rpc_method_handler(_let_go(method)) for name, method in streaming.items()},
    )


def _given_first(first: FirstMessages, method: Method) -> Method:
    """The method, given the call's one request."""

    async def serve(_: object, context: Any) -> Any:
        try:
            request = await first.wait(context.read())
            if request is grpc.aio.EOF:
                raise Refusal(Reason.MALFORMED, "the call ended without its request: send one")
            return await method(request, context)
        except Refusal as refusal:
            await abort(context, refusal)

    return serve


def _let_go(method: Method) -> Method:
    """The method, such that a refusal leaves nothing of its call behind.

    grpc.aio (1.85.1) ends a refused call by an exception, which it keeps beside the call's context. That exception
    knows the frames that it passed through, and the error that it came from; and they know the context. In this circle
    the refused message (up to 2 MiB), and all that was made of it, would stay until the garbage collector comes by.
    """

    async def serve(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.AbortError as error:
            error.__context__ = None
            traceback.clear_frames(error.__traceback__)
            del request, context  # of this frame, which cannot be cleared while it runs
            raise
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            raise asyncio.CancelledError from None  # the caller has gone; grpc.aio (1.85.1) would log a traceback

    return serve
