"""Which method is served by what; messages go in and out as bytes, so that sizes are checked before parsing."""

from typing import Any, TypeAlias

import grpc
from gemps.v1 import parameter_server_pb2

from gem_server.service.commit_stream import CommitStream
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
    operations: Operations,
) -> Service:
    """The service."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": grpc.unary_unary_rpc_method_handler(membership.join),
        "Initialize": grpc.stream_unary_rpc_method_handler(initialize.serve),
        "Pull": grpc.unary_stream_rpc_method_handler(pull.serve),
        "Commit": grpc.stream_stream_rpc_method_handler(commit.serve),
        "Heartbeat": grpc.unary_unary_rpc_method_handler(membership.heartbeat),
        "Leave": grpc.unary_unary_rpc_method_handler(membership.leave),
        "GetStatus": grpc.unary_unary_rpc_method_handler(status.get),
        "WatchStatus": grpc.unary_stream_rpc_method_handler(status.watch),
        "ReportEvaluation": grpc.unary_unary_rpc_method_handler(operations.report_evaluation),
        "Control": grpc.unary_unary_rpc_method_handler(operations.control),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
