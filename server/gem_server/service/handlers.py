"""The table of gRPC methods. Handlers check the sizes of messages before they parse them."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from gemps.v1 import observer_pb2, shards_pb2, worker_pb2

from gem_server import __version__
from gem_server.errors import Reason, RefusedError
from gem_server.service.commit_handler import CommitHandler
from gem_server.service.first_message import FirstMessages
from gem_server.service.follow_handler import FollowHandler
from gem_server.service.health import SERVICE as HEALTH
from gem_server.service.health import Health
from gem_server.service.history_handler import HistoryHandler
from gem_server.service.initialize_handler import InitializeHandler
from gem_server.service.membership_handler import MembershipHandler
from gem_server.service.operations import Operations
from gem_server.service.pull_handler import PullHandler
from gem_server.service.status import Status
from gem_server.service.status_codes import abort

WORKER = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
OBSERVER = observer_pb2.DESCRIPTOR.services_by_name["ObserverService"].full_name
SHARD = shards_pb2.DESCRIPTOR.services_by_name["ShardService"].full_name
SERVICES = (WORKER, OBSERVER, SHARD)
# The drafts of gemps.v1 had this service instead of WorkerService and the others.
DRAFT = "gemps.v1.ParameterServerService"

Service: TypeAlias = grpc.GenericRpcHandler
Method: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


def handlers(
    first: FirstMessages,
    membership: MembershipHandler,
    initialize: InitializeHandler,
    pull: PullHandler,
    commit: CommitHandler,
    status: Status,
    history: HistoryHandler,
    operations: Operations,
    follow: FollowHandler,
) -> tuple[Service, ...]:
    """Return the services. All requests are streams, because gRPC waits for unary ones without a time-out."""
    one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    for_workers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": one(_given_first(first, membership.join)),
        "Initialize": one(_let_go(initialize.serve)),
        "Pull": many(_given_first(first, pull.serve)),
        "Commit": many(_let_go(commit.serve)),
        "Heartbeat": one(_given_first(first, membership.heartbeat)),
        "Leave": one(_given_first(first, membership.leave)),
    }
    for_observers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetStatus": one(_given_first(first, status.get_status)),
        "WatchStatus": many(_given_first(first, status.watch)),
        "GetHistory": one(_given_first(first, history.get_history)),
        "ReportEvaluation": one(_given_first(first, operations.report_evaluation)),
        "Control": one(_given_first(first, operations.control)),
    }
    for_shards: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Follow": many(_let_go(follow.follow))}
    return (
        grpc.method_handlers_generic_handler(WORKER, for_workers),
        grpc.method_handlers_generic_handler(OBSERVER, for_observers),
        grpc.method_handlers_generic_handler(SHARD, for_shards),
        DraftHandler(),
    )


class DraftHandler(grpc.GenericRpcHandler):
    """Refuses callers that speak a draft of gemps.v1, with VERSION, because UNIMPLEMENTED would not say what to do."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return the refusal for a call to the drafts' service, else None."""
        if not str(handler_call_details.method).startswith(f"/{DRAFT}/"):
            return None
        return grpc.stream_stream_rpc_method_handler(_let_go(_refuse_draft))


async def _refuse_draft(_: object, context: Any) -> None:
    await abort(
        context,
        RefusedError(
            Reason.VERSION,
            f"this caller speaks a draft of gemps.v1, of a development version of gemps 0.1 ({DRAFT}), and this "
            f"server, gemps {__version__}, speaks gemps.v1 itself ({WORKER}): update the caller's gemps package, or "
            "generate its code from the protos of the server's version",
        ),
    )


def health_handlers(first: FirstMessages, health: Health) -> Service:
    """Return the service grpc.health.v1."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Check": grpc.stream_unary_rpc_method_handler(_given_first(first, health.check)),
        "Watch": grpc.stream_stream_rpc_method_handler(_given_first(first, health.watch)),
    }
    return grpc.method_handlers_generic_handler(HEALTH, methods)


def _given_first(first: FirstMessages, method: Method) -> Method:

    async def serve(_: object, context: Any) -> Any:
        try:
            request = await first.wait(context.read())
            if request is grpc.aio.EOF:
                raise RefusedError(Reason.MALFORMED, "the call ended without its request: send one")
            return await method(request, context)
        except RefusedError as refusal:
            await abort(context, refusal)

    return _let_go(serve)


def _let_go(method: Method) -> Method:
    """Wrap a method so that a refused call's memory is freed at once.

    grpc.aio (1.85.1) keeps the exception in a reference cycle with the context and the message (up to 2 MiB).
    """

    async def serve(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.AbortError as error:
            error.__context__ = None
            traceback.clear_frames(error.__traceback__)
            del request, context  # clear_frames skips the running frame
            raise
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            raise asyncio.CancelledError from None  # grpc.aio (1.85.1) would log a traceback

    return serve
