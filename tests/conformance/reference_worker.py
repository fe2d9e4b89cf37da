"""A complete worker from docs/protocol.md and the generated messages alone, with at most one fault planted in it.

It is the kit's witness: an independent reading of the contract, so it shares no line with gem_worker or gem_core. One
thread makes one call after the other; nothing is made fast. What it trains is the quadratic task of the document's
section on conformance: loss = 1/2 sum theta^2, so that delta = float32(-eta) * theta.

    GEMPS_SERVER=127.0.0.1:50051 GEMPS_WORKER_NAME=w GEMPS_CONFORMANCE=task.json python reference_worker.py

Exit status: 0 once the run is finished; 1 when something must not be retried, or was retried for too long; 2 for a
setting that is missing; 3 when it speaks none of the wire types of the task, or the model
is on several servers.
"""

import argparse
import hashlib
import json
import os
import queue
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import google_crc32c
import grpc
import numpy as np
from gemps.v1 import (
    commit_pb2,
    layout_pb2,
    parameters_pb2,
    run_pb2,
    session_pb2,
    transfer_pb2,
    worker_pb2_grpc,
)
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Answer = TypeVar("Answer")

FLOAT32, BFLOAT16 = 1, 3
SPOKEN = {"float32": FLOAT32, "bfloat16": BFLOAT16}
KINDS = ("parameter", "buffer", "frozen")
ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
ELEMENT_BYTES |= {"uint8": 1, "bool": 1}
# Payloads up to this travel in the header's message (docs/protocol.md, "Commit").
WHOLE_BYTES = 64 * 1024
LARGEST_VALUE = np.float32(1e30)
# Seconds: of trouble without a success between, of one small call, and between two attempts (jittered) at most.
PATIENCE = 60.0
CALL_SECONDS = 20.0
LONGEST_PAUSE = 2.0
# Factors of a pause.
BACK_OFF_JITTER, RETRY_JITTER = (0.5, 1.0), (1.0, 1.2)
# Damaged in both directions again and again: a fault of ours, or of the memory.
MOST_CHECKSUM_REFUSALS = 5
# What the session, and with it the snapshot, is lost by: join with the same id, then pull.
LOST_SESSION = {"UNKNOWN_SESSION", "EXPIRED_SESSION", "UNKNOWN_INCARNATION"}
# The code of a call that broke on the way, as long as no ErrorInfo says that the server means it.
TRANSPORT_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
}


class Fault(Enum):
    """What can be planted."""

    NO_FOOTER = auto()  # no transfer that it sends has a footer
    WRONG_CHECKSUM = auto()  # CRC-32, as of zip files, instead of CRC32C in what it sends
    NEW_SEQUENCE_ON_RETRY = auto()  # a commit that is sent again counts as another one
    IGNORED_RETRY_INFO = auto()  # sends again at once what it was asked to send later
    STALE_BASE = auto()  # names the version before the one that its gradient is of
    WRONG_DIGEST = auto()  # leaves the final newline out of the canonical text
    TRUNCATING_BFLOAT16 = auto()  # takes the upper half of a float32 without rounding


class TornCallError(Exception):
    """The call broke, or what it brought is damaged: it may be made again."""


class Refused(Exception):  # noqa: N818 - an answer
    """The server refuses, for `reason`; `retry_after` in seconds where it says when to try again."""

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.retry_after = retry_after


class Hopeless(Exception):  # noqa: N818 - the worker ends by it
    """What must not be retried, or was retried for too long."""


class NotSpoken(Exception):  # noqa: N818 - the worker ends by it
    """The run asks for an optional part of the contract."""


def judged(error: grpc.RpcError) -> TornCallError | Refused:
    """What a failed call means, by ErrorInfo and RetryInfo in its trailer (docs/protocol.md, "Refusals")."""
    info, retry_after = None, None
    for entry in error.trailing_metadata() or ():
        for detail in Status.FromString(entry.value).details if entry.key == "grpc-status-details-bin" else ():
            if detail.Is(ErrorInfo.DESCRIPTOR):
                info = ErrorInfo.FromString(detail.value)
            elif detail.Is(RetryInfo.DESCRIPTOR):
                delay = RetryInfo.FromString(detail.value).retry_delay
                retry_after = delay.seconds + delay.nanos / 1e9
    if info is not None and info.domain == "gemps":
        if info.reason in ("STARTING", "DRAINING") and retry_after is None:
            return TornCallError(f"{info.reason}: {error.details()}")
        return Refused(info.reason, error.details() or "", retry_after)
    if error.code() in TRANSPORT_CODES:
        return TornCallError(f"{error.code().name}: {error.details()}")
    return Refused(error.code().name, error.details() or "")


# -- layouts and payloads ------------------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """One line of the layout; `kind` and `element_type` by their names in the canonical text."""

    name: str
    shape: tuple[int, ...]
    element_type: str
    kind: str
    aliases: tuple[str, ...] = ()
    sha256: str = ""

    @property
    def elements(self) -> int:
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count

    @property
    def byte_count(self) -> int:
        return self.elements * ELEMENT_BYTES[self.element_type]


def canonical_text(layout: Iterable[Tensor]) -> str:
    """The text whose SHA-256 is the layout's digest (layout.proto)."""
    lines = ["gemps-layout-1"]
    for tensor in layout:
        names = [tensor.name, *sorted(tensor.aliases, key=lambda alias: alias.encode())]
        shape = f"{len(tensor.shape)}:{','.join(map(str, tensor.shape))}"
        named = " ".join(f"{len(name.encode())}:{name}" for name in names)
        digest = f"{tensor.sha256} " if tensor.kind == "frozen" else ""
        lines.append(f"{tensor.kind} {tensor.element_type} {shape} {digest}{named}")
    return "\n".join(lines) + "\n"


def digest_of(text: str) -> bytes:
    """SHA-256 of the text's UTF-8."""
    return hashlib.sha256(text.encode()).digest()


def in_wire_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    """PARAMETERs, then BUFFERs, then FROZEN tensors."""
    return sorted(tensors, key=lambda tensor: KINDS.index(tensor.kind))


def spec(tensor: Tensor) -> layout_pb2.TensorSpec:
    """The tensor as Join tells it."""
    return layout_pb2.TensorSpec(
        name=tensor.name,
        shape=tensor.shape,
        element_type=f"ELEMENT_TYPE_{tensor.element_type.upper()}",
        kind=f"TENSOR_KIND_{tensor.kind.upper()}",
        aliases=tensor.aliases,
        sha256=bytes.fromhex(tensor.sha256),
    )


def bfloat16(values: Floats) -> NDArray[np.uint16]:
    """The upper halves, rounded half to even: half a unit of the last place is added, less one where that is even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def encode(wire_type: int, values: Floats) -> bytes:
    """The bytes of PARAMETERs in a wire type."""
    if wire_type == FLOAT32:
        return values.astype("<f4").tobytes()
    return bfloat16(values).astype("<u2").tobytes()


def decode(wire_type: int, data: bytes) -> Floats:
    """The PARAMETERs that these bytes are.

    Raises:
        TornCallError: a value is not finite, or beyond 1e30.
    """
    if wire_type == FLOAT32:
        values = np.frombuffer(data, "<f4").astype(np.float32)
    else:
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if not (np.abs(values) <= LARGEST_VALUE).all():
        raise TornCallError("a value is not finite, or beyond 1e30")
    return values


class Format:
    """Where what lies in a payload: PARAMETERs in the wire type, then BUFFERs."""

    def __init__(self, layout: Iterable[Tensor], wire_type: int) -> None:
        self.wire_type = wire_type
        by_kind = {kind: [tensor for tensor in layout if tensor.kind == kind] for kind in KINDS}
        self.count = sum(tensor.elements for tensor in by_kind["parameter"])
        unit = {FLOAT32: 4, BFLOAT16: 2}[wire_type]
        self.parameter_bytes = self.count * unit
        self.byte_count = self.parameter_bytes + sum(tensor.byte_count for tensor in by_kind["buffer"])


def cut(payload: bytes, chunk_bytes: int) -> list[bytes]:
    """The payload as chunks of so many bytes."""
    return [payload[start : start + chunk_bytes] for start in range(0, len(payload), chunk_bytes)]


class Incoming:
    """Parameters on their way in; nothing of them is used before the footer has come and matches."""

    def __init__(self, format_: Format, digest: bytes) -> None:
        self.format = format_
        self._digest = digest
        self.version: transfer_pb2.Version | None = None
        self.data = bytearray()

    def announce(self, header: transfer_pb2.ParametersHeader) -> None:
        """Check the header against what was asked for.

        Raises:
            Hopeless: the parameters are another model's.
            TornCallError: they do not go on where they were torn.
        """
        if header.layout_digest != self._digest:
            raise Hopeless("the digest of the server's layout is not that of this worker's: it is another model")
        if header.wire_type != self.format.wire_type or header.byte_count != self.format.byte_count:
            raise Hopeless("the server sends parameters of another wire type or size than this worker's")
        if self.version is not None and header.version != self.version:
            raise TornCallError("the server resumed the transfer with another version")
        self.version = header.version

    def add(self, chunk: bytes) -> None:
        """One more chunk. Raises TornCallError when it comes before the header."""
        if self.version is None:
            raise TornCallError("a chunk came before the header")
        self.data += chunk

    def finish(self, footer: transfer_pb2.Footer) -> tuple[Floats, bytes]:
        """PARAMETERs as float32; the bytes of the BUFFERs. Raises TornCallError."""
        if (len(self.data), google_crc32c.value(bytes(self.data))) != (self.format.byte_count, footer.crc32c):
            raise TornCallError("the footer does not match what came")
        parameters = bytes(self.data[: self.format.parameter_bytes])
        rest = bytes(self.data[self.format.parameter_bytes :])
        values = decode(self.format.wire_type, parameters)
        return values, rest


# -- the worker ----------------------------------------------------------------------------------------------------


class CommitCall:
    """The stream that all commits travel on. What is sent is made by gRPC's thread, when flow control lets it out."""

    def __init__(self, stub: Any) -> None:
        self._batches: queue.SimpleQueue[Iterable[commit_pb2.CommitRequest] | None] = queue.SimpleQueue()
        self._call = stub.Commit(self._feed())

    def _feed(self) -> Iterator[commit_pb2.CommitRequest]:
        while (batch := self._batches.get()) is not None:
            yield from batch

    def send(self, messages: Iterable[commit_pb2.CommitRequest]) -> None:
        """Queue these messages, which are made one by one."""
        self._batches.put(messages)

    def half_close(self) -> None:
        """Nothing more will be sent."""
        self._batches.put(None)

    def receive(self) -> commit_pb2.CommitResponse:
        """The next message. Raises TornCallError, also where the stream ends normally; Refused."""
        try:
            return next(self._call)
        except StopIteration:
            raise TornCallError("the stream ended during a commit") from None
        except grpc.RpcError as error:
            raise judged(error) from None

    def end(self) -> None:
        """Break it off."""
        self.half_close()
        self._call.cancel()


class Worker:
    """A worker's state, and its calls."""

    def __init__(self, address: str, name: str, task: dict[str, Any], fault: Fault | None) -> None:
        self.name = name
        self.fault = fault
        self.layout = in_wire_order(
            Tensor(
                one["name"],
                tuple(one["shape"]),
                one["element_type"],
                one["kind"],
                tuple(one.get("aliases", ())),
                one.get("sha256", ""),
            )
            for one in task["layout"]
        )
        text = canonical_text(self.layout)
        self.digest = digest_of(text[:-1] if fault is Fault.WRONG_DIGEST else text)
        self.offers = [
            [SPOKEN[name] for name in task[f"{what}_wire_types"] if name in SPOKEN] for what in ("delta", "parameter")
        ]
        self.session_id = os.urandom(16)
        self.membership = session_pb2.JoinResponse()
        self.last_applied = 0
        self.eta = 0.0
        self.finished = False
        # The version held, and the one before it (for the fault STALE_BASE). None: in doubt, so pull.
        self.version: transfer_pb2.Version | None = None
        self.previous: transfer_pb2.Version | None = None
        self.theta = np.zeros(0, np.float32)
        self.buffers = b""
        self.stream: CommitCall | None = None
        self._failing_since: float | None = None
        self._pause = 0.1
        self._checksum_refusals = 0
        options = [
            # Finds a peer that has vanished, between two steps too; the server allows a ping every 30 s.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            # Whether a commit is sent again is decided here: gRPC does not know what was applied.
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
        ]
        self.channel = grpc.insecure_channel(address, options=options)
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)

    def run(self) -> None:
        """Train until the run is finished, then leave."""
        try:
            self.join()
            while not self.finished:
                if self.version is None:
                    self.pull()
                else:
                    self.commit()
            if self.stream is not None:
                self.stream.half_close()
            self.leave("finished")
        except KeyboardInterrupt:
            self.leave("interrupted")
            raise
        finally:
            self.drop_stream()
            self.channel.close()

    # -- trying again ------------------------------------------------------------------------------------------

    def back_off(self, why: Exception) -> None:
        """A jittered pause, twice as long each time. Raises Hopeless once nothing has succeeded for PATIENCE."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > PATIENCE:
            raise Hopeless(f"gave up after {PATIENCE:g} s: {why}")
        time.sleep(self._pause * random.uniform(*BACK_OFF_JITTER))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def succeeded(self) -> None:
        self._failing_since, self._pause, self._checksum_refusals = None, 0.1, 0

    def wait_as_asked(self, refusal: Refused) -> None:
        """Sleep for what RetryInfo says; raise the refusal where there is none, because then nothing would help."""
        if refusal.retry_after is None:
            raise refusal
        if refusal.reason == "CHECKSUM":
            self._checksum_refusals += 1
            if self._checksum_refusals > MOST_CHECKSUM_REFUSALS:
                raise refusal
        if self.fault is not Fault.IGNORED_RETRY_INFO:
            time.sleep(refusal.retry_after * random.uniform(*RETRY_JITTER))

    def answered(self, call: Callable[[], Answer]) -> Answer:
        """Make a small call until it is answered; raises Refused for what another call is the answer to."""
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                reason = judged(error)
            if isinstance(reason, Refused):
                self.wait_as_asked(reason)
            else:
                self.back_off(reason)

    # -- the session -------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Join, also again with the same id; upload the first parameters where there are none."""
        request = session_pb2.JoinRequest(
            session_id=self.session_id,
            worker_name=self.name,
            host_id="reference",
            layout=layout_pb2.Layout(tensors=map(spec, self.layout)),
            delta_wire_types=self.offers[0],
            parameter_wire_types=self.offers[1],
            agent="gemps-reference/1",
            device="cpu",
        )
        before = self.membership.incarnation
        self.membership = self.answered(lambda: self.stub.Join(request, timeout=CALL_SECONDS))
        if self.membership.shards:
            raise NotSpoken("the model is on several servers, and this worker commits to one")
        if self.membership.settings.local_steps > 1:
            raise Hopeless(f"the run wants {self.membership.settings.local_steps} local steps: this worker has none")
        if self.membership.incarnation != before:
            # Another process: what it holds for this session is gone.
            self.version = self.previous = None
        self.last_applied = self.membership.last_applied_sequence
        self.eta = self.membership.next_eta
        self.told(self.membership.run_state)
        if not self.membership.has_parameters and not self.finished:
            self.initialize()

    def join_again(self) -> None:
        """The session was lost, or counts otherwise than we do: what we hold is in doubt."""
        self.version = self.previous = None
        self.drop_stream()
        self.join()

    def told(self, state: int) -> None:
        self.finished = state == run_pb2.RUN_STATE_FINISHED

    def heartbeat(self) -> None:
        """Learn what was applied; join again where the server was restarted or has lost the session."""
        request = session_pb2.HeartbeatRequest(session_id=self.session_id)
        try:
            answer = self.answered(lambda: self.stub.Heartbeat(request, timeout=CALL_SECONDS))
        except Refused as refusal:
            if refusal.reason not in LOST_SESSION:
                raise
            self.join_again()
            return
        if answer.incarnation != self.membership.incarnation:
            self.join_again()
            return
        self.last_applied = answer.last_applied_sequence
        self.told(answer.run_state)

    def leave(self, reason: str) -> None:
        """Say goodbye, once: a session that nobody ends expires by itself."""
        try:
            self.stub.Leave(session_pb2.LeaveRequest(session_id=self.session_id, reason=reason), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            print(f"could not leave: {judged(error)}", file=sys.stderr)

    # -- sending -----------------------------------------------------------------------------------------------

    def checksum(self, payload: bytes) -> int:
        return zlib.crc32(payload) if self.fault is Fault.WRONG_CHECKSUM else google_crc32c.value(payload)

    def footer(self, payload: bytes) -> transfer_pb2.Footer | None:
        if self.fault is Fault.NO_FOOTER:
            return None
        return transfer_pb2.Footer(crc32c=self.checksum(payload))

    def initialize(self) -> None:
        """Upload the first parameters, until some are there: these, or another worker's."""
        format_ = Format(self.layout, FLOAT32)
        first = ((np.arange(format_.count) % 509 - 254) / 256).astype(np.float32)
        payload = encode(FLOAT32, first)
        payload += bytes(format_.byte_count - len(payload))

        def messages() -> Iterator[parameters_pb2.InitializeRequest]:
            header = parameters_pb2.InitializeHeader(session_id=self.session_id, byte_count=len(payload))
            yield parameters_pb2.InitializeRequest(header=header)
            for chunk in cut(payload, self.membership.chunk_bytes):
                yield parameters_pb2.InitializeRequest(chunk=chunk)
            if (footer := self.footer(payload)) is not None:
                yield parameters_pb2.InitializeRequest(footer=footer)

        try:
            self.answered(lambda: self.stub.Initialize(messages()))
        except Refused as refusal:
            if refusal.reason not in LOST_SESSION:
                raise
            self.back_off(refusal)
            self.join_again()

    # -- pulling -----------------------------------------------------------------------------------------------

    def incoming(self) -> Incoming:
        return Incoming(Format(self.layout, self.membership.parameter_wire_type), self.digest)

    def pull(self, torn: Incoming | None = None) -> None:
        """Bring the current parameters, or the rest of a torn transfer as long as the server still has its version."""
        transfer = torn or self.incoming()
        while True:
            request = parameters_pb2.PullRequest(session_id=self.session_id)
            if transfer.version is not None:
                request.resume_version.CopyFrom(transfer.version)
                request.resume_offset = len(transfer.data)
            try:
                self.receive_pull(request, transfer)
                return
            except TornCallError as reason:
                self.back_off(reason)
            except Refused as refusal:
                if self.recovered(refusal, resumed=transfer.version is not None):
                    transfer = self.incoming()
                else:
                    self.wait_as_asked(refusal)
            if self.finished:
                return

    def recovered(self, refusal: Refused, *, resumed: bool) -> bool:
        """Do what the refusal of a pull asks for; whether there was such a thing, so that the pull begins anew."""
        if refusal.reason == "STALE_BASE" and resumed:
            return True
        if refusal.reason == "NEWER_CALL":
            self.back_off(refusal)
            return True
        if refusal.reason in LOST_SESSION:
            self.back_off(refusal)
            self.join_again()
            return True
        if refusal.reason == "NOT_INITIALIZED":
            self.back_off(refusal)
            self.initialize()
            return True
        return False

    def receive_pull(self, request: parameters_pb2.PullRequest, transfer: Incoming) -> None:
        call = self.stub.Pull(request)
        try:
            for message in call:
                if self.took(transfer, message, "header"):
                    return
        except grpc.RpcError as error:
            raise judged(error) from None
        finally:
            call.cancel()
        raise TornCallError("the pull ended without a footer")

    def took(self, transfer: Incoming, message: Any, header: str) -> bool:
        """Take what a message has of a transfer, in this order; whether that completed, and installed, it.

        Raises TornCallError; the transfer then begins anew if what came of it is damaged.
        """
        try:
            if message.HasField(header):
                transfer.announce(getattr(message, header))
            if message.chunk:
                transfer.add(message.chunk)
            if not message.HasField("footer"):
                return False
            theta, buffers = transfer.finish(message.footer)
        except TornCallError:
            transfer.version = None
            transfer.data.clear()
            raise
        self.previous = self.version
        self.theta, self.buffers, self.version = theta, buffers, transfer.version
        self.succeeded()
        return True

    # -- committing --------------------------------------------------------------------------------------------

    def drop_stream(self) -> None:
        if self.stream is not None:
            self.stream.end()
            self.stream = None

    def commit(self) -> None:
        """Settle one delta: it is applied once, or dropped because the parameters it is a gradient of are gone."""
        delta = np.float32(-self.eta) * self.theta
        wire_type = self.membership.delta_wire_type
        if self.fault is Fault.TRUNCATING_BFLOAT16 and wire_type == BFLOAT16:
            encoded = (delta.view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            encoded = encode(wire_type, delta)
        payload = encoded + self.buffers
        stale = self.fault is Fault.STALE_BASE and self.previous is not None
        header = commit_pb2.CommitHeader(
            session_id=self.session_id,
            sequence=self.last_applied + 1,
            base_version=self.previous if stale else self.version,
            wire_type=wire_type,
            byte_count=len(payload),
            loss=float(np.square(self.theta, dtype=np.float64).sum() / 2),
            samples=1,
            payload_crc32c=self.checksum(payload),
        )
        applied = False
        while True:
            transfer = self.incoming()
            try:
                self.exchange(header, payload, transfer, header_alone=applied)
                return
            except TornCallError as torn:
                self.drop_stream()
                self.back_off(torn)
                if self.last_applied == header.sequence and self.version is None:
                    # The verdict came. What is missing of the reply is pulled.
                    self.pull(transfer)
                    return
                self.heartbeat()
            except Refused as refusal:
                self.drop_stream()
                self.answer_refusal(refusal)
            if self.version is None or self.finished:
                return
            applied = self.last_applied == header.sequence
            if self.fault is Fault.NEW_SEQUENCE_ON_RETRY:
                header.sequence, applied = header.sequence + 1, False

    def answer_refusal(self, refusal: Refused) -> None:
        """What the reason asks for; a version that is lost by it means that the delta is dropped."""
        if refusal.reason == "RUN_FINISHED":
            self.finished = True
        elif refusal.reason == "STALE_BASE":
            self.version = self.previous = None
        elif refusal.reason in LOST_SESSION or refusal.reason == "SEQUENCE_GAP":
            self.back_off(refusal)
            self.join_again()
        elif refusal.reason == "NEWER_CALL":
            self.back_off(refusal)
            self.heartbeat()
        else:
            self.wait_as_asked(refusal)

    def exchange(
        self, header: commit_pb2.CommitHeader, payload: bytes, transfer: Incoming, *, header_alone: bool
    ) -> None:
        """One commit on the stream. `header_alone`: it was applied, and only its verdict is missing."""
        if self.stream is None:
            self.stream = CommitCall(self.stub)
        stream = self.stream
        if len(payload) <= WHOLE_BYTES and not header_alone:
            footer = self.footer(payload)
            stream.send([commit_pb2.CommitRequest(header=header, chunk=payload, footer=footer)])
            if footer is None:
                stream.half_close()
            message = stream.receive()
        else:
            stream.send([commit_pb2.CommitRequest(header=header)])
            message = stream.receive()
            if message.HasField("proceed"):
                if message.proceed.sequence != header.sequence:
                    raise Hopeless("the server lets another commit proceed than the one that was announced")
                stream.send(self.rest(payload))
                if self.fault is Fault.NO_FOOTER:
                    stream.half_close()
                message = stream.receive()
        if not message.HasField("verdict") or message.verdict.sequence != header.sequence:
            raise Hopeless("the server answers with something else than this commit's verdict")
        self.last_applied = message.verdict.sequence
        self.eta = message.verdict.next_eta
        self.told(message.verdict.run_state)
        # Until the reply is complete. `took` makes it the version before.
        before, self.version = self.version, None
        while not self.took(transfer, message, "parameters"):
            message = stream.receive()
        self.previous = before

    def rest(self, payload: bytes) -> Iterator[commit_pb2.CommitRequest]:
        """The chunks, and the footer with the last one."""
        chunks = cut(payload, self.membership.chunk_bytes)
        for chunk in chunks[:-1]:
            yield commit_pb2.CommitRequest(chunk=chunk)
        yield commit_pb2.CommitRequest(chunk=b"".join(chunks[-1:]), footer=self.footer(payload))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=[fault.name for fault in Fault], help="plant this fault")
    planted = parser.parse_args().fault
    try:
        address, name = os.environ["GEMPS_SERVER"], os.environ["GEMPS_WORKER_NAME"]
        task = json.loads(Path(os.environ["GEMPS_CONFORMANCE"]).read_text(encoding="utf-8"))
    except KeyError as missing:
        print(f"set {missing.args[0]}: see docs/protocol.md, Conformance", file=sys.stderr)
        return 2
    worker = Worker(address, name, task, Fault[planted] if planted else None)
    if not all(worker.offers):
        print("this worker speaks none of the wire types of the task", file=sys.stderr)
        return 3
    try:
        worker.run()
    except KeyboardInterrupt:
        return 130
    except NotSpoken as error:
        print(error, file=sys.stderr)
        return 3
    except (Refused, Hopeless) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
