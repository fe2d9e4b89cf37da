"""The reference worker with optional parts: INT4_BLOCK deltas, local steps, early proceed and the lane.

It imports the reference worker, so PYTHONPATH must contain examples/workers/python. Tests play the kit's optional
scenarios with it, and edit it into mutants as they do with the reference worker.
"""

import json
import os
import socket
import struct
import sys
from pathlib import Path

import grpc
import numpy as np
import reference_worker
from gemps.v1 import commit_pb2, lane_pb2, worker_pb2_grpc
from google.rpc.status_pb2 import Status
from reference_worker import TornError, Worker, parts

INT4 = 6
HELLO, WELCOME, MESSAGE, END = 1, 2, 3, 4
FEATURES = ("early-proceed", "local-steps")
reference_worker.WIRE_TYPES["int4_block"] = INT4


def encode_int4(values):
    """Return float32 values as INT4_BLOCK: blocks of 256 elements, each a float32 scale and two elements per byte."""
    blocks, out = [values[at : at + 256] for at in range(0, values.size, 256)], b""
    for block in blocks:
        scale = np.abs(block).max() / np.float32(7)
        quotients = block / scale if scale else np.zeros_like(block)
        q = np.clip(np.rint(quotients), -7, 7).astype(np.int8).view(np.uint8) & 15
        q = np.pad(q, (0, q.size % 2))
        out += struct.pack("<f", scale) + (q[::2] | q[1::2] << 4).tobytes()
    return out


def decode_int4(data, count):
    """Return the `count` float32 values that `data` encodes as INT4_BLOCK."""
    values = np.empty(count, np.float32)
    for at in range(0, count, 256):
        start = at // 256 * 132
        size = min(256, count - at)
        (scale,) = struct.unpack_from("<f", data, start)
        halves = np.frombuffer(data, np.uint8, (size + 1) // 2, start + 4)
        q = np.stack([halves & 15, halves >> 4], 1).ravel()[:size].astype(np.int8)
        values[at : at + size] = np.where(q > 7, q - 16, q) * np.float32(scale)
    return values


class LaneError(grpc.RpcError):
    """The status in an END frame, with the methods of a gRPC error, so that the worker handles both in the same way."""

    def __init__(self, status):
        self.status = status

    def code(self):
        return next(one for one in grpc.StatusCode if one.value[0] == self.status.code)

    def trailing_metadata(self):
        return (("grpc-status-details-bin", self.status.SerializeToString()),)


class Lane:
    """A connection to the lane, which `commits` uses as if it were a gRPC stream and its queue of requests.

    The constructor raises OSError if the server cannot be reached or does not answer HELLO.
    """

    def __init__(self, host, joined, session_id):
        self.connection = socket.create_connection((host, joined.lane_port), timeout=20)
        hello = lane_pb2.LaneHello(
            magic=b"gemps-lane", version=1, incarnation=joined.incarnation, session_id=session_id
        )
        self.send(HELLO, hello)
        kind, body = self.receive()
        if kind != WELCOME or lane_pb2.LaneWelcome.FromString(body).incarnation != joined.incarnation:
            raise OSError("no WELCOME of this incarnation")

    def put(self, message):
        if message is not None:
            self.send(MESSAGE, message)

    def send(self, kind, message):
        data = message.SerializeToString()
        self.connection.sendall(struct.pack("<IB", len(data), kind) + data)

    def receive(self):
        size, kind = struct.unpack("<IB", self.exactly(5))
        return kind, self.exactly(size)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise OSError("the connection has ended")
            data += piece
        return data

    def __iter__(self):
        return self

    def __next__(self):
        try:
            kind, body = self.receive()
        except OSError as error:
            raise TornError(str(error)) from None
        if kind == END:
            raise LaneError(Status.FromString(body))
        return commit_pb2.CommitResponse.FromString(body)

    def cancel(self):
        self.connection.close()


class OptionalWorker(Worker):
    """The reference worker with optional parts.

    Attributes:
        early_sequence: the sequence for which the last reply has brought the proceed.
        residual: what the encoding of deltas has left out so far, which the next delta adds.
        steps: the number of local steps between two commits.
        joined: the newest answer to Join.
    """

    early_sequence, residual, steps, joined = 0, np.float32(0), 1, None

    def learn(self, news):
        super().learn(news)
        if isinstance(news, commit_pb2.Verdict):
            return
        self.joined, self.early_sequence, settings = news, 0, news.settings
        self.steps = max(1, settings.local_steps)
        self.divisor = self.steps if settings.normalise_local_steps else 1
        self.rate = settings.local_rate

    def delta(self):
        total, own = np.zeros_like(self.theta), self.theta.copy()
        for _ in range(self.steps):
            total += own
            own -= np.float32(self.rate * self.eta) * own
        return np.float32(-self.eta) * total / np.float32(self.divisor)

    def encoded(self, delta):
        if self.wire_type != INT4:
            return reference_worker.encode(self.wire_type, delta)
        due = self.residual + delta
        data = encode_int4(due)
        self.residual = due - decode_int4(data, due.size)
        return data

    def open_stream(self):
        host = os.environ["GEMPS_SERVER"].rpartition(":")[0]
        if self.joined.lane_port and self.joined.port == int(os.environ["GEMPS_SERVER"].rpartition(":")[2]):
            try:
                lane = Lane(host, self.joined, self.session_id)
            except OSError:
                pass
            else:
                return lane, lane
        requests = reference_worker.queue.SimpleQueue()
        return requests, self.server.Commit(iter(requests.get, None))

    def commits(self):
        requests, stream = self.open_stream()
        try:
            while not (self.finished or self.interrupted):
                payload = self.encoded(self.delta()) + self.buffers
                header = self.header_of(payload)
                header.local_steps = self.steps
                requests.put(commit_pb2.CommitRequest(header=header))
                if self.early_sequence != header.sequence and not reference_worker.next_of(stream).HasField("proceed"):
                    raise TornError("another answer than proceed")
                for message in parts(commit_pb2.CommitRequest, payload):
                    requests.put(message)
                self.receive(self.noting_proceed(stream), "parameters")
                self.pause, self.damaged = 0.1, 0
        except BaseException:
            stream.cancel()
            raise
        finally:
            requests.put(None)

    def noting_proceed(self, stream):
        for message in stream:
            if message.HasField("proceed"):
                self.early_sequence = message.proceed.sequence
            yield message


def announce(server):
    """Change a stub so that its Join announces the features, and return it."""
    join = server.Join

    def joining(request, timeout):
        request.features.extend(FEATURES)
        return join(request, timeout=timeout)

    server.Join = joining
    return server


if __name__ == "__main__":
    task = json.loads(Path(os.environ["GEMPS_CONFORMANCE"]).read_text(encoding="utf-8"))
    if task["parameter_wire_types"] == ["int4_block"]:
        sys.exit(reference_worker.NOT_SPOKEN)  # it does not support differences of parameters
    with grpc.insecure_channel(os.environ["GEMPS_SERVER"]) as channel:
        stub = announce(worker_pb2_grpc.WorkerServiceStub(channel))
        worker = OptionalWorker(stub, os.environ["GEMPS_WORKER_NAME"], task)
        reference_worker.signal.signal(reference_worker.signal.SIGTERM, worker.interrupt)
        sys.exit(worker.run())
