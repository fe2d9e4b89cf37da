"""Sessions of attackers who may join: what one has to say to commit, in messages."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
from gemps.v1 import commit_pb2, parameters_pb2, session_pb2, transfer_pb2, worker_pb2_grpc

from tests.hostile.attacks import Scene, Target
from tests.wire.model import FLOAT32, Model, Tensor, Values
from tests.wire.transfer import Commit, cut_payload, footer_of

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
PATIENCE = 60


class Session:
    """A session that has joined and pulled. Its commits are prepared here, and sent by whom they belong to."""

    def __init__(self, target: Target, stub: worker_pb2_grpc.WorkerServiceStub, name: str) -> None:
        self.session_id = os.urandom(16)
        self._model = Model((Tensor("weight", (target.parameters,)),))
        self.metadata = (("authorization", f"Bearer {target.token}"),) if target.token else ()
        join = session_pb2.JoinRequest(
            session_id=self.session_id, worker_name=name, host_id="host", layout=self._model.to_proto()
        )
        stub.Join(join, metadata=self.metadata, timeout=PATIENCE)
        self.version = transfer_pb2.Version()
        pull = parameters_pb2.PullRequest(session_id=self.session_id)
        for response in stub.Pull(pull, metadata=self.metadata, timeout=PATIENCE):
            if response.HasField("header"):
                self.version = response.header.version
        self.sequence = 0

    def leave_request(self) -> session_pb2.LeaveRequest:
        return session_pb2.LeaveRequest(session_id=self.session_id, reason="finished")

    def commit(self) -> Commit:
        """The next commit, of a delta that changes next to nothing."""
        parameters = np.full(self._model.parameter_count, 1e-9, np.float32)
        payload = self._model.encode(Values(parameters))
        chunks = cut_payload(payload, 1 << 20)
        header = commit_pb2.CommitHeader(
            session_id=self.session_id,
            sequence=self.sequence + 1,
            base_version=self.version,
            wire_type=FLOAT32,
            byte_count=len(payload),
        )
        return Commit(header, payload, chunks, footer_of(payload))

    def take(self, response: commit_pb2.CommitResponse) -> bool:
        """Note what a reply's message says; whether it was the last one."""
        if response.HasField("verdict"):
            self.sequence = response.verdict.sequence
        if response.HasField("parameters"):
            self.version = response.parameters.version
        return response.HasField("footer")


@contextmanager
def stub_of(target: Target) -> Iterator[worker_pb2_grpc.WorkerServiceStub]:
    """Calls at the ordinary port."""
    if target.ca_file:
        credentials = grpc.ssl_channel_credentials(Path(target.ca_file).read_bytes())
        channel = grpc.secure_channel(target.address, credentials, OWN_CONNECTION)
    else:
        channel = grpc.insecure_channel(target.address, OWN_CONNECTION)
    with channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)


def join(scene: Scene, count: int = 1) -> list[Session]:
    """So many sessions; the log may have some lines of each."""
    with stub_of(scene.target) as stub:
        sessions = [Session(scene.target, stub, f"hostile-{scene.target.number}-{number}") for number in range(count)]
    scene.facts["sessions"] += count
    return sessions
