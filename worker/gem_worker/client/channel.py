"""Address, channel and RPCs of a server."""

import ipaddress
import logging
import os
import re
import threading
import time

import grpc
from gemps import lane
from gemps.limits import MESSAGE_BYTES
from gemps.v1 import history_pb2, lane_pb2, operations_pb2, parameters_pb2, session_pb2, status_pb2

from gem_worker.client import operating_system
from gem_worker.client.commit_call import CommitCall, GrpcCall
from gem_worker.client.credentials import ChannelWithToken, Credentials, tls_context
from gem_worker.client.errors import AddressError, CredentialsError
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.lane_call import LaneCall, LaneRoute

_log = logging.getLogger(__name__)

MIB = 1 << 20
_WORKER = "/gemps.v1.WorkerService/"
_OBSERVER = "/gemps.v1.ObserverService/"

# For this number of seconds after a failure of the lane, commits go over gRPC.
LANE_AGAIN_SECONDS = 60.0
# The lane alone was cut if the server could be asked over gRPC within these seconds; else it was the whole network.
_LANE_ALONE_SECONDS = 2.0
# Hosts that mean this machine. Other addresses of 127.0.0.0/8 do not, because tests use them for other machines.
THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Pings keep connections through NAT and load balancers open. The server accepts one every 30 s.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # With gRPC's defaults, up to two minutes pass until a client connects to a restarted server.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    # Only this library may repeat a commit.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # At most one stream of parameters, which is read.
    ("grpc.http2.max_frame_size", 16 * MIB - 1),
    ("grpc.http2.lookahead_bytes", 16 * MIB),
    ("grpc.http2.bdp_probe", 0),
    # One TCP connection per client.
    ("grpc.use_local_subchannel_pool", 1),
)


def check_address(address: str) -> str:
    """Return the address. Raises AddressError."""
    if address.startswith("unix:") and len(address) > len("unix:"):
        if operating_system.IS_WINDOWS:
            raise AddressError(
                f"{address!r} is a socket of this machine, and no server runs on Windows: write HOST:PORT"
            )
        return address
    scheme = re.match(r"[a-z+]+://", address)
    if scheme is not None:
        raise AddressError(f"{address!r} is not a server address: leave out {scheme[0]!r} and write HOST:PORT")
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        fix = f"[{address}]:50051" if address.count(":") > 1 else f"{address or 'localhost'}:50051"
        raise AddressError(f"{address!r} has no port: write HOST:PORT, for example {fix}")
    if not host or re.search(r"[\s/]", host):
        raise AddressError(f"{address!r} is not a server address: write HOST:PORT, for example localhost:50051")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        raise AddressError(f"{address!r} has no usable port: {port!r} is not a number from 1 to 65535")
    return address


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]").removesuffix(".")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_channel(address: str, credentials: Credentials) -> grpc.Channel:
    """A channel to a checked address."""
    options: list[tuple[str, int | str]] = list(_OPTIONS)
    if _is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    tls = credentials.tls()
    if tls is not None and (name := credentials.name_in_certificate(address.rpartition(":")[0])):
        options.append(("grpc.ssl_target_name_override", name))
    channel = (
        grpc.insecure_channel(address, options=options)
        if tls is None
        else grpc.secure_channel(address, tls, options=options)
    )
    return ChannelWithToken(channel, credentials.token) if credentials.token else channel


def may_use_lane(address: str, credentials: Credentials) -> bool:
    """Whether a second connection, to the lane's port, would reach the same server."""
    if not credentials.settings.lane or address.startswith("unix:"):
        return False
    return _is_loopback(address) or not any(os.environ.get(name) for name in PROXY_VARIABLES)


class Calls:
    """The calls of a server. Those with chunks exchange raw bytes.

    Read the attributes anew for each call, because `renew` replaces them.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        if credentials.token and not credentials.protected and not _is_loopback(address):
            raise CredentialsError(
                f"the token for {address} would travel without TLS, for anybody on the path to read: set "
                "GEMPS_CLIENT_TLS_CA, or GEMPS_CLIENT_INSECURE=true if the network is trusted"
            )
        self._address = address
        self._credentials = credentials
        self._lock = threading.Lock()
        self._closed = False
        self._lane: LaneRoute | None = None
        self._lane_call: LaneCall | None = None
        self._lane_from = 0.0  # time.monotonic() of the next attempt
        self._lane_failures = 0  # since it was used last
        self._warned_of_lane = False
        self._open()

    def is_same_machine(self, response: session_pb2.JoinResponse) -> bool:
        """Whether the server that answered Join is on this machine.

        Its address says so, unless something forwards the port from there, or the path of its socket for shared memory
        exists here.
        """
        host, _, port = self._address.rpartition(":")
        if self._address.startswith("unix:") or (host in THIS_MACHINE and port == str(response.port)):
            return True
        return bool(response.shared_memory_socket) and os.path.exists(response.shared_memory_socket)

    def use_lane(self, session_id: bytes, response: session_pb2.JoinResponse) -> None:
        """Commit on the server's lane if reachable."""
        host, _, port = self._address.rpartition(":")
        self._lane, self._lane_from = None, 0.0
        # A forwarded port may lead to another service.
        if response.lane_port and port == str(response.port) and may_use_lane(self._address, self._credentials):
            hello = lane_pb2.LaneHello(
                magic=lane.MAGIC, version=lane.VERSION, incarnation=response.incarnation, session_id=session_id
            )
            self._lane = LaneRoute(host.strip("[]"), response.lane_port, hello)

    def open_commit(self) -> CommitCall:
        """Open a Commit call; the previous one must be closed."""
        now = time.monotonic()
        last, self._lane_call = self._lane_call, None
        if last is not None and last.cut_at is not None and now - last.cut_at < _LANE_ALONE_SECONDS:
            self._lane_failed("the network no longer lets its connection through", is_closed=True)
        if self._lane is not None and now >= self._lane_from:
            call = self._connect_lane(self._lane)
            if call is not None:
                self._lane_failures = 0
                return call
        with self._lock:
            return GrpcCall(self.commit)

    def _connect_lane(self, route: LaneRoute) -> LaneCall | None:
        credentials = self._credentials
        for _, authorization in credentials.token.metadata() if credentials.token else ():
            route.hello.authorization = authorization
        call: LaneCall | None = None
        try:
            name = credentials.name_in_certificate(route.host)
            call = LaneCall(route, tls_context(credentials.settings), name)
            with self._lock:
                if self._closed:
                    return None
                self._lane_call = call
            call.connect()
        except BaseException as error:
            if call is not None:
                call.close()
            if not isinstance(error, OSError | grpc.RpcError):
                raise
            if call is None or not call.was_refused:  # gRPC will report a refusal
                # A server that restarts at this moment refuses the connection, or is another one. A firewall does not
                # answer.
                is_closed = isinstance(error, OSError) and not isinstance(error, ConnectionError)
                self._lane_failed(str(error), is_closed=is_closed)
            return None
        return call

    def _lane_failed(self, why: str, *, is_closed: bool) -> None:
        """Commit over gRPC for a while. Warn once, if the lane `is_closed` or has failed before."""
        self._lane_from = time.monotonic() + LANE_AGAIN_SECONDS
        self._lane_failures += 1
        port = self._lane.port if self._lane is not None else 0
        if (is_closed or self._lane_failures > 1) and not self._warned_of_lane:
            self._warned_of_lane = True
            _log.warning(
                "the lane, the server's port %d, cannot be used (%s): committing over gRPC, which costs more processor "
                "time; open the port, or set GEMPS_CLIENT_LANE=false",
                port,
                why,
                extra={"event": "lane-closed"},
            )

    def renew(self) -> None:
        """Replace the connection, ending its calls, and query DNS again.

        A channel whose DNS query failed backs off for up to 2 min, whatever its options (grpcio 1.85.1).
        """
        with interrupts_wait(), self._lock:
            self._cancel_lane()
            if not self._closed:
                self._channel.close()
                self._open()

    def close(self) -> None:
        """Close for good."""
        with self._lock:
            self._closed = True
            self._cancel_lane()
            self._channel.close()

    def _cancel_lane(self) -> None:
        if self._lane_call is not None:
            self._lane_call.cancel()

    def _open(self) -> None:
        self._channel = channel = open_channel(self._address, self._credentials)
        self.join: grpc.UnaryUnaryMultiCallable[session_pb2.JoinRequest, session_pb2.JoinResponse] = (
            channel.unary_unary(
                f"{_WORKER}Join",
                request_serializer=session_pb2.JoinRequest.SerializeToString,
                response_deserializer=session_pb2.JoinResponse.FromString,
            )
        )
        self.heartbeat: grpc.UnaryUnaryMultiCallable[session_pb2.HeartbeatRequest, session_pb2.HeartbeatResponse] = (
            channel.unary_unary(
                f"{_WORKER}Heartbeat",
                request_serializer=session_pb2.HeartbeatRequest.SerializeToString,
                response_deserializer=session_pb2.HeartbeatResponse.FromString,
            )
        )
        self.leave: grpc.UnaryUnaryMultiCallable[session_pb2.LeaveRequest, session_pb2.LeaveResponse] = (
            channel.unary_unary(
                f"{_WORKER}Leave",
                request_serializer=session_pb2.LeaveRequest.SerializeToString,
                response_deserializer=session_pb2.LeaveResponse.FromString,
            )
        )
        self.initialize: grpc.StreamUnaryMultiCallable[bytes, parameters_pb2.InitializeResponse] = channel.stream_unary(
            f"{_WORKER}Initialize",
            request_serializer=None,
            response_deserializer=parameters_pb2.InitializeResponse.FromString,
        )
        self.pull: grpc.UnaryStreamMultiCallable[parameters_pb2.PullRequest, bytes] = channel.unary_stream(
            f"{_WORKER}Pull",
            request_serializer=parameters_pb2.PullRequest.SerializeToString,
            response_deserializer=None,
        )
        self.commit: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"{_WORKER}Commit", request_serializer=None, response_deserializer=None
        )
        self.get_status: grpc.UnaryUnaryMultiCallable[status_pb2.GetStatusRequest, status_pb2.GetStatusResponse] = (
            channel.unary_unary(
                f"{_OBSERVER}GetStatus",
                request_serializer=status_pb2.GetStatusRequest.SerializeToString,
                response_deserializer=status_pb2.GetStatusResponse.FromString,
            )
        )
        self.watch_status: grpc.UnaryStreamMultiCallable[
            status_pb2.WatchStatusRequest, status_pb2.WatchStatusResponse
        ] = channel.unary_stream(
            f"{_OBSERVER}WatchStatus",
            request_serializer=status_pb2.WatchStatusRequest.SerializeToString,
            response_deserializer=status_pb2.WatchStatusResponse.FromString,
        )
        self.get_history: grpc.UnaryUnaryMultiCallable[
            history_pb2.GetHistoryRequest, history_pb2.GetHistoryResponse
        ] = channel.unary_unary(
            f"{_OBSERVER}GetHistory",
            request_serializer=history_pb2.GetHistoryRequest.SerializeToString,
            response_deserializer=history_pb2.GetHistoryResponse.FromString,
        )
        self.report_evaluation: grpc.UnaryUnaryMultiCallable[
            operations_pb2.ReportEvaluationRequest, operations_pb2.ReportEvaluationResponse
        ] = channel.unary_unary(
            f"{_OBSERVER}ReportEvaluation",
            request_serializer=operations_pb2.ReportEvaluationRequest.SerializeToString,
            response_deserializer=operations_pb2.ReportEvaluationResponse.FromString,
        )
        self.control: grpc.UnaryUnaryMultiCallable[operations_pb2.ControlRequest, operations_pb2.ControlResponse] = (
            channel.unary_unary(
                f"{_OBSERVER}Control",
                request_serializer=operations_pb2.ControlRequest.SerializeToString,
                response_deserializer=operations_pb2.ControlResponse.FromString,
            )
        )
