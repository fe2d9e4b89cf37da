"""A complete worker from the protos alone: grpcio, generated code and NumPy, with one rule for every failure.

    GEMPS_SERVER=127.0.0.1:50051 GEMPS_WORKER_NAME=w GEMPS_CONFORMANCE=task.json python reference_worker.py

It trains the quadratic task of docs/protocol.md#conformance, in which the gradient of a parameter is the parameter,
and passes every scenario of `gemps conformance serve` that is not optional.
"""

import contextlib
import json
import os
import queue
import random
import signal
import sys
import time

import google_crc32c
import grpc
import numpy as np
from gemps.v1 import commit_pb2, layout_pb2, parameters_pb2, run_pb2, session_pb2, transfer_pb2, worker_pb2_grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

WIRE_TYPES = {"float32": 1, "bfloat16": 3}
ELEMENT_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
WHOLE_BYTES, CHUNK_BYTES = 64 * 1024, 1024 * 1024
BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 1, 2, 3, 128 + signal.SIGTERM  # exit statuses
TRANSPORT_CODES = ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL")
# The reasons that errors.proto marks with an asterisk.
RULE_REASONS = ("BAD_VALUE", "CHECKSUM", "UNKNOWN_SESSION", "EXPIRED_SESSION", "UNKNOWN_INCARNATION", "STALE_BASE")
RULE_REASONS += ("SEQUENCE_GAP", "NOT_INITIALIZED", "NEWER_CALL", "STARTING", "DRAINING", "NO_SHARED_MEMORY")


class TornError(Exception):
    """A transfer has ended without its footer, or does not match it."""


class Worker:
    """A session, and the parameters that it holds: `theta` (float32) and the bytes of BUFFERs, of version `base`."""

    def __init__(self, server, name, task):
        self.server, self.name, self.task = server, name, task
        self.session_id = os.urandom(16)
        elements = {one["name"]: int(np.prod(one["shape"], dtype=int)) for one in task["layout"]}
        kinds = {kind: [one for one in task["layout"] if one["kind"] == kind] for kind in ("parameter", "buffer")}
        self.count = sum(elements[one["name"]] for one in kinds["parameter"])
        sizes = [elements[one["name"]] * ELEMENT_BYTES.get(one["element_type"], 4) for one in kinds["buffer"]]
        self.buffers = bytes(sum(sizes))
        self.theta = ((np.arange(self.count) % 509 - 254) / 256).astype(np.float32)
        self.pause, self.damaged, self.finished, self.interrupted = 0.1, 0, False, False

    def interrupt(self, *_):
        self.interrupted = True

    def run(self):
        while not (self.finished or self.interrupted):
            try:
                self.join()
                if not (self.finished or self.interrupted):
                    self.receive(self.server.Pull(parameters_pb2.PullRequest(session_id=self.session_id)), "header")
                    self.commits()
            except (grpc.RpcError, TornError) as error:
                time.sleep(self.wait_after(error))
        reason = "finished" if self.finished else "interrupted"
        with contextlib.suppress(grpc.RpcError):  # without Leave the session ends by itself
            self.server.Leave(session_pb2.LeaveRequest(session_id=self.session_id, reason=reason), timeout=20)
        return 0 if self.finished else INTERRUPTED

    def join(self):
        request = session_pb2.JoinRequest(
            session_id=self.session_id,
            worker_name=self.name,
            layout=layout_pb2.Layout(tensors=[spec(one) for one in self.task["layout"]]),
            delta_wire_types=offer(self.task["delta_wire_types"]),
            parameter_wire_types=offer(self.task["parameter_wire_types"]),
        )
        joined = self.server.Join(request, timeout=60)
        self.wire_type, self.digest = joined.delta_wire_type, joined.layout_digest
        self.sequence = joined.last_applied_sequence
        self.learn(joined)
        if not joined.has_parameters:
            payload = self.theta.tobytes() + self.buffers
            header = parameters_pb2.InitializeHeader(session_id=self.session_id, byte_count=len(payload))
            first = parameters_pb2.InitializeRequest(header=header)
            self.server.Initialize(iter([first, *parts(parameters_pb2.InitializeRequest, payload)]))

    def learn(self, news):
        """Store what the next commit depends on, from Join's answer or a verdict."""
        self.eta, self.finished = news.next_eta, news.run_state == run_pb2.RUN_STATE_FINISHED

    def commits(self):
        requests = queue.SimpleQueue()
        stream = self.server.Commit(iter(requests.get, None))
        try:
            while not (self.finished or self.interrupted):
                delta = np.float32(-self.eta) * self.theta
                payload = encode(self.wire_type, delta) + self.buffers
                header = self.header_of(payload)
                messages = parts(commit_pb2.CommitRequest, payload)
                whole = commit_pb2.CommitRequest(header=header)
                if len(payload) <= WHOLE_BYTES:
                    for message in messages:
                        whole.MergeFrom(message)
                    requests.put(whole)
                else:
                    requests.put(whole)
                    if next_of(stream).proceed.sequence != header.sequence:
                        raise TornError("another answer than proceed")
                    for message in messages:
                        requests.put(message)
                self.receive(stream, "parameters")
                self.pause, self.damaged = 0.1, 0
        except BaseException:
            stream.cancel()
            raise
        finally:
            requests.put(None)

    def header_of(self, payload):
        """The header of the next commit."""
        return commit_pb2.CommitHeader(
            session_id=self.session_id,
            sequence=self.sequence + 1,
            base_version=self.base,
            wire_type=self.wire_type,
            byte_count=len(payload),
            samples=1,
        )

    def receive(self, stream, header_name):
        """Receive parameters, and a verdict if there is one. Install the parameters once their footer matches."""
        payload, header, footer = bytearray(), None, None
        while footer is None:
            message = next_of(stream)
            if header_name == "parameters" and message.HasField("verdict"):
                self.sequence = message.verdict.sequence
                self.learn(message.verdict)
            if message.HasField(header_name):
                header = getattr(message, header_name)
            payload += message.chunk
            footer = message.footer if message.HasField("footer") else None
        if footer.crc32c != google_crc32c.value(bytes(payload)) or len(payload) != header.byte_count:
            raise TornError("the footer does not match")
        if header.layout_digest != self.digest:
            stop(BUG, "the parameters are of another layout than this worker's")
        middle = len(payload) - len(self.buffers)
        self.theta, self.buffers = decode(header.wire_type, payload[:middle]), bytes(payload[middle:])
        self.base = header.version

    def wait_after(self, error):
        """Return the seconds to wait before the one rule. Ends the process if the rule does not help.

        The cases are in the order of the table in errors.proto, but for CHECKSUM, which is a bug from the sixth on.
        """
        code, reason, delay, final = details(error)
        self.damaged += reason == "CHECKSUM"
        if final:
            stop(FINAL, error)
        if reason == "RUN_FINISHED":
            self.finished = True
            return 0
        if self.damaged > 5:
            stop(BUG, error)
        if delay is not None:
            return delay * random.uniform(1, 1.2)  # noqa: S311 - no secret
        if reason not in RULE_REASONS and (reason or code not in TRANSPORT_CODES):
            stop(BUG, error)
        self.pause = min(2 * self.pause, 4)
        return self.pause / 2 * random.uniform(0.5, 1)  # noqa: S311 - no secret


def details(error):
    """Return gRPC's code, the reason (empty without ErrorInfo), RetryInfo's delay or None, and whether it is final."""
    if isinstance(error, TornError):
        return "UNAVAILABLE", "", None, False
    reason, delay, final = "", None, False
    for key, value in error.trailing_metadata() or ():
        for detail in Status.FromString(value).details if key == "grpc-status-details-bin" else ():
            info, retry = ErrorInfo(), RetryInfo()
            if detail.Unpack(info) and info.domain == "gemps":
                reason, final = info.reason, info.metadata.get("final") == "true"
            elif detail.Unpack(retry):
                delay = retry.retry_delay.ToNanoseconds() / 1e9
    return error.code().name, reason, delay, final


def next_of(stream):
    """Return the next message. Raises TornError at the end of the stream, even if the status is OK."""
    for message in stream:
        return message
    raise TornError("the stream has ended")


def parts(kind, payload):
    """Yield the payload's chunks and its footer, as messages of this kind."""
    for start in range(0, len(payload), CHUNK_BYTES):
        yield kind(chunk=payload[start : start + CHUNK_BYTES])
    yield kind(footer=transfer_pb2.Footer(crc32c=google_crc32c.value(payload)))


def spec(tensor):
    """Convert a tensor of the task to the form that Join has."""
    return layout_pb2.TensorSpec(
        name=tensor["name"],
        shape=tensor["shape"],
        element_type=f"ELEMENT_TYPE_{tensor['element_type'].upper()}",
        kind=f"TENSOR_KIND_{tensor['kind'].upper()}",
        aliases=tensor.get("aliases", ()),
        sha256=bytes.fromhex(tensor.get("sha256", "")),
    )


def offer(names):
    """Return those of the task's wire types that this worker supports."""
    return [WIRE_TYPES[one] for one in names if one in WIRE_TYPES] or stop(NOT_SPOKEN, f"none of {names} is spoken")


def encode(wire_type, values):
    """Encode float32 values. bfloat16 rounds half to even."""
    if wire_type == WIRE_TYPES["float32"]:
        return values.astype("<f4").tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def decode(wire_type, data):
    """Decode bytes to float32 values."""
    if wire_type == WIRE_TYPES["float32"]:
        return np.frombuffer(data, "<f4").astype(np.float32)
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def stop(status, why):
    """Print why, and end the process with this status."""
    print(why, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    with open(os.environ["GEMPS_CONFORMANCE"], encoding="utf-8") as file:
        quadratic_task = json.load(file)
    with grpc.insecure_channel(os.environ["GEMPS_SERVER"]) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        worker = Worker(stub, os.environ["GEMPS_WORKER_NAME"], quadratic_task)
        signal.signal(signal.SIGTERM, worker.interrupt)
        sys.exit(worker.run())
