"""A complete worker: trains a linear classifier of handwritten digits (docs/protocol.md, "A complete worker")."""

import json
import os
import queue
import socket
import sys

import google_crc32c
import grpc
import numpy as np
from gemps.v1.commit_pb2 import CommitHeader, CommitRequest
from gemps.v1.layout_pb2 import ELEMENT_TYPE_FLOAT32, TENSOR_KIND_PARAMETER, Layout, TensorSpec
from gemps.v1.parameters_pb2 import InitializeHeader, InitializeRequest, PullRequest
from gemps.v1.run_pb2 import RUN_STATE_FINISHED
from gemps.v1.session_pb2 import JoinRequest, LeaveRequest
from gemps.v1.transfer_pb2 import WIRE_TYPE_FLOAT32, Footer
from gemps.v1.worker_pb2_grpc import WorkerServiceStub


def train(server, session, tensors, first, gradient):
    """Train until the run is finished. `first` and gradients: all tensors in their order, flat, in float32."""
    name = os.environ.get("GEMPS_WORKER_NAME", f"python-{os.getpid()}")
    layout = Layout(tensors=tensors)
    join = JoinRequest(session_id=session, worker_name=name, host_id=socket.gethostname(), layout=layout)
    joined = news = server.Join(join, timeout=60)
    if not joined.has_parameters:
        header = InitializeHeader(session_id=session, byte_count=first.nbytes)
        server.Initialize(iter([InitializeRequest(header=header), *parts(InitializeRequest, first.tobytes())]))
    theta, fields = receive(server.Pull(PullRequest(session_id=session)))
    version, sequence = fields["header"].version, joined.last_applied_sequence
    if fields["header"].layout_digest != joined.layout_digest:
        raise ValueError("these are another model's parameters")
    requests = queue.SimpleQueue()
    replies = server.Commit(iter(requests.get, None))
    while news.run_state != RUN_STATE_FINISHED:
        delta = (np.float32(-news.next_eta) * gradient(theta)).tobytes()
        sequence += 1
        header = CommitHeader(session_id=session, sequence=sequence, base_version=version)
        header.wire_type, header.byte_count = WIRE_TYPE_FLOAT32, len(delta)
        requests.put(CommitRequest(header=header))
        next(replies)  # proceed: the server has a buffer
        for part in parts(CommitRequest, delta):
            requests.put(part)
        theta, fields = receive(replies)
        version, news = fields["parameters"].version, fields["verdict"]
    requests.put(None)  # half-closes the stream
    server.Leave(LeaveRequest(session_id=session, reason="finished"), timeout=20)


def parts(message, payload):
    """The payload's chunks and its footer, as messages of this type."""
    for start in range(0, len(payload), 1 << 20):
        yield message(chunk=payload[start : start + (1 << 20)])
    yield message(footer=Footer(crc32c=google_crc32c.value(payload)))


def receive(messages):
    """The parameters that come next, and the other fields of their messages by name."""
    fields, payload = {}, b""
    for message in messages:
        payload += message.chunk
        fields |= {field.name: value for field, value in message.ListFields()}
        if "footer" in fields:
            if fields["footer"].crc32c != google_crc32c.value(payload):
                raise ConnectionError("the parameters were damaged on their way")
            return np.frombuffer(payload, "<f4"), fields
    raise ConnectionError("the stream ended before the parameters did")


def digits(path):
    """Tensors, first parameters and gradient of the task that `gemps export-task digits` writes."""
    with open(path, encoding="utf-8") as file:
        samples = json.load(file)["train"]
    inputs = np.pad(np.array(samples["inputs"], "f4") / 16, ((0, 0), (0, 1)), constant_values=1)  # 1: for the bias
    targets = np.eye(10, dtype="f4")[samples["labels"]]

    def gradient(theta):
        chosen = np.random.randint(len(inputs), size=32)
        odds = np.exp(inputs[chosen] @ theta.reshape(65, 10))
        return (inputs[chosen].T @ (odds / odds.sum(1, keepdims=True) - targets[chosen]) / 32).ravel()

    weights = TensorSpec(name="weights", shape=[65, 10], element_type=ELEMENT_TYPE_FLOAT32, kind=TENSOR_KIND_PARAMETER)
    return [weights], np.zeros(650, "f4"), gradient


if __name__ == "__main__":
    with grpc.insecure_channel(os.environ.get("GEMPS_SERVER", "localhost:50051")) as channel:
        train(WorkerServiceStub(channel), os.urandom(16), *digits(sys.argv[1]))
