"""Which method is served by what; messages go in and out as bytes, so that sizes are checked before parsing."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from gemps.v1 import parameter_server_pb2

from gem_server.service.commit_stream import CommitStream
from gem_server.service.history import History
from gem_server.service.initialize_stream import InitializeStream
from gem_server.service.membership import Membership
from gem_server.service.operations import Operations
from gem_server.service.pull_stream import PullStream
from gem_server.service.status import Status

SERVICE = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"].full_name

Service: TypeAlias = grpc.GenericRpcHandler


def handlers(
    membership: Membership,
    initialize: InitializeStream,
    pull: PullStream,
    commit: CommitStream,
    status: Status,
    history: History,
    operations: Operations,
) -> Service:
    """The service."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": grpc.unary_unary_rpc_method_handler(_let_go(membership.join)),
        "Initialize": grpc.stream_unary_rpc_method_handler(_let_go(initialize.serve)),
        "Pull": grpc.unary_stream_rpc_method_handler(_let_go(pull.serve)),
        "Commit": grpc.stream_stream_rpc_method_handler(_let_go(commit.serve)),
        "Heartbeat": grpc.unary_unary_rpc_method_handler(_let_go(membership.heartbeat)),
        "Leave": grpc.unary_unary_rpc_method_handler(_let_go(membership.leave)),
        "GetStatus": grpc.unary_unary_rpc_method_handler(_let_go(status.get)),
        "WatchStatus": grpc.unary_stream_rpc_method_handler(_let_go(status.watch)),
        "GetHistory": grpc.unary_unary_rpc_method_handler(_let_go(history.get)),
        "ReportEvaluation": grpc.unary_unary_rpc_method_handler(_let_go(operations.report_evaluation)),
        "Control": grpc.unary_unary_rpc_method_handler(_let_go(operations.control)),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _let_go(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
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
