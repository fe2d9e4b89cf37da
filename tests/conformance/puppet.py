"""A worker whose every message a test may write: right by default, wrong exactly where the test says so."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from gem_conformance import FaultError, Limits, Outcome, Scenario
from gem_conformance.layouts import layout_to
from gem_conformance.play import Play, perform_together
from gem_conformance.shards import ShardGroup
from gem_conformance.talk import NotSpokenError
from gem_conformance.task import Task
from gem_conformance.wire import Event, Kind, Wire
from gemps.v1 import commit_pb2, parameters_pb2, session_pb2, transfer_pb2, worker_pb2_grpc
from numpy.typing import NDArray

from gem_core.checksum import crc32c
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard
from gem_core.wire_types import WireType, decode, encode

NAME = "puppet"
# Patience for what never comes: a test waits that long for its fault, a right puppet never does.
LIMITS = Limits(start=5.0, answer=2.0, footer=0.5, quiet=0.3, exit=1.0)
_SECONDS = 20.0


class Puppet:
    """Holds what a worker holds; see the module. One thread. `others`: its sides at the other shards."""

    def __init__(self, wires: Sequence[Wire], task: Task, shard: Shard) -> None:
        wire = wires[shard.index]
        self.task = task
        self.layout = shard.layout_of(task.layout)
        others = range(1, len(wires)) if shard.index == 0 else ()
        self.others = [Puppet(wires, task, Shard(index, shard.count)) for index in others]
        self.commit_id = self.incarnation = 0
        self.session_id = os.urandom(16)
        self.applied = 0
        self.eta = 0.0
        self.version = transfer_pb2.Version()
        self.theta: NDArray[np.float32] = np.empty(0, np.float32)
        self.buffers = b""
        self._wire = wire
        self.channel = grpc.insecure_channel(wire.address)
        self.stub: Any = worker_pb2_grpc.WorkerServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self._said: queue.Queue[commit_pb2.CommitRequest | None] = queue.Queue()
        self._call: Any = None
        self._calls: list[Any] = []

    @property
    def payload(self) -> PayloadFormat:
        """Of a delta."""
        return PayloadFormat(self.layout, self.task.delta_wire_types[0])

    @property
    def is_whole(self) -> bool:
        """A delta travels whole."""
        return self.payload.byte_count <= 64 << 10

    # --- calls

    def join(self, **changes: Any) -> session_pb2.JoinResponse:
        request: dict[str, Any] = {
            "session_id": self.session_id,
            "worker_name": NAME,
            "layout": layout_to(self.task.layout),
            "delta_wire_types": [int(one) for one in self.task.delta_wire_types],
            "parameter_wire_types": [int(one) for one in self.task.parameter_wire_types],
        }
        answer: session_pb2.JoinResponse = self.stub.Join(
            session_pb2.JoinRequest(**(request | changes)), timeout=_SECONDS, wait_for_ready=True
        )
        self.applied = answer.last_applied_sequence
        self.eta = answer.next_eta
        self.incarnation = answer.incarnation
        return answer

    def initialize(self, data: bytes, *, chunk_bytes: int = 70_000) -> parameters_pb2.InitializeResponse:
        footer = transfer_pb2.Footer(crc32c=crc32c(data))
        header = parameters_pb2.InitializeHeader(session_id=self.session_id, byte_count=len(data))
        messages = [parameters_pb2.InitializeRequest(header=header)]
        payload = PayloadFormat(self.layout, WireType.FLOAT32)
        for start, end in payload.cut(chunk_bytes):
            chunk = data[start:end]
            messages.append(parameters_pb2.InitializeRequest(chunk=chunk))
        messages.append(parameters_pb2.InitializeRequest(footer=footer))
        answer: parameters_pb2.InitializeResponse = self.stub.Initialize(iter(messages), timeout=_SECONDS)
        return answer

    def pull(self, **changes: Any) -> None:
        """Pull, and hold what came, however little that was."""
        request: dict[str, Any] = {"session_id": self.session_id} | changes
        data = bytearray()
        for message in self.stub.Pull(parameters_pb2.PullRequest(**request), timeout=_SECONDS):
            if message.HasField("header"):
                self.version = message.header.version
            data += message.chunk
        if not changes.get("resume_offset"):
            self.hold(bytes(data))

    def heartbeat(self) -> session_pb2.HeartbeatResponse:
        answer: session_pb2.HeartbeatResponse = self.stub.Heartbeat(
            session_pb2.HeartbeatRequest(session_id=self.session_id), timeout=_SECONDS
        )
        return answer

    def leave(self) -> None:
        self.stub.Leave(session_pb2.LeaveRequest(session_id=self.session_id), timeout=_SECONDS)

    def exits(self, status: int) -> None:
        """The end of its process, had it one."""
        self._wire.events.put(Event(Kind.EXITED, status=status))

    # --- commits

    def delta(self, theta: NDArray[np.float32] | None = None) -> bytes:
        values = np.float32(-self.eta) * (self.theta if theta is None else theta)
        return bytes(encode(self.task.delta_wire_types[0], values)) + self.buffers

    def header(self, **changes: Any) -> commit_pb2.CommitHeader:
        fields: dict[str, Any] = {
            "session_id": self.session_id,
            "sequence": self.applied + 1,
            "base_version": self.version,
            "wire_type": int(self.task.delta_wire_types[0]),
            "byte_count": self.payload.byte_count,
            "commit_id": self.commit_id,
        }
        return commit_pb2.CommitHeader(**(fields | changes))

    def footer(self, data: bytes, **changes: Any) -> transfer_pb2.Footer:
        fields = {"crc32c": crc32c(data)}
        return transfer_pb2.Footer(**(fields | changes))

    def whole(self, data: bytes | None = None, **changes: Any) -> commit_pb2.CommitRequest:
        data = self.delta() if data is None else data
        return commit_pb2.CommitRequest(header=self.header(**changes), chunk=data, footer=self.footer(data))

    def chunks(self, data: bytes | None = None, chunk_bytes: int = 70_000) -> list[commit_pb2.CommitRequest]:
        """What follows proceed."""
        data = self.delta() if data is None else data
        cuts = list(self.payload.cut(chunk_bytes))
        found = [commit_pb2.CommitRequest(chunk=data[start:end]) for start, end in cuts]
        return [*found, commit_pb2.CommitRequest(footer=self.footer(data))]

    def say(self, *messages: commit_pb2.CommitRequest) -> None:
        """On the commit stream, which is opened when there is none."""
        if self._call is None:
            self._call = self.stub.Commit(iter(self._said.get, None), timeout=_SECONDS)
        for message in messages:
            self._said.put(message)

    def hear(self) -> commit_pb2.CommitResponse:
        """The next message of the stream. A stream that ends is forgotten, and its error raised."""
        try:
            answer: commit_pb2.CommitResponse = next(self._call)
        except grpc.RpcError:
            self.disconnect()
            raise
        return answer

    def disconnect(self) -> None:
        """Close the stream, as gently as can be."""
        self._said.put(None)
        self._calls.append(self._call)  # one that nobody holds is cancelled
        self._said, self._call = queue.Queue(), None

    def hear_reply(self) -> commit_pb2.Verdict:
        """Up to the footer; holds what came."""
        verdict, data = commit_pb2.Verdict(), bytearray()
        while True:
            answer = self.hear()
            if answer.HasField("verdict"):
                verdict.CopyFrom(answer.verdict)
                self.eta, self.applied = verdict.next_eta, verdict.sequence
            if answer.HasField("parameters"):
                self.version = answer.parameters.version
            data += answer.chunk
            if answer.HasField("footer"):
                self.hold(bytes(data))
                return verdict

    def commit(self, **changes: Any) -> commit_pb2.Verdict:
        """A right commit, with a changed header."""
        data = self.delta()
        if self.is_whole:
            self.say(self.whole(data, **changes))
        else:
            self.say(commit_pb2.CommitRequest(header=self.header(**changes)))
            assert self.hear().HasField("proceed")
            self.say(*self.chunks(data))
        return self.hear_reply()

    def hold(self, data: bytes) -> None:
        """Take parameters as they came, complete or not."""
        payload = PayloadFormat(self.layout, self.task.parameter_wire_types[0])
        if len(data) < payload.byte_count:
            return
        self.theta = np.empty(self.layout.parameter_count, np.float32)
        decode(payload.wire_type, memoryview(data)[: payload.parameter_bytes], self.theta)
        self.buffers = data[payload.parameter_bytes : payload.byte_count]


Steps = Callable[[Puppet], object]


def refused(step: Callable[[], object]) -> str:
    """A step that the kit refuses, or tears; the status's message."""
    with pytest.raises(grpc.RpcError) as caught:
        step()
    return str(caught.value.details())


def begin(puppet: Puppet) -> None:
    """What every worker does first where there are parameters."""
    puppet.join()
    puppet.pull()


def until_finished(puppet: Puppet) -> None:
    """Commit until the run is finished, and leave."""
    while puppet.commit().run_state != 3:
        pass
    puppet.leave()


def verdict_on(scenario: Scenario, steps: Steps, *, by_hand: bool = True) -> FaultError | str | None:
    """What the kit says of a puppet that takes these steps: a fault, None (passed) or "not spoken"."""
    wires, group = [Wire() for _ in range(scenario.shards)], ShardGroup(scenario.shards)
    for wire in wires:
        wire.start()
    puppet = Puppet(wires, scenario.task, Shard(0, len(wires)))
    thread = threading.Thread(target=_carry_out, args=(steps, puppet))
    plays = [
        Play(
            scenario.task,
            wire,
            LIMITS,
            worker_name=NAME,
            chunk_bytes=scenario.chunk_bytes,
            may_not_speak=scenario.may_not_speak,
            by_hand=by_hand,
            shard=Shard(index, len(wires)),
            group=group,
        )
        for index, wire in enumerate(wires)
    ]
    thread.start()
    try:
        perform_together(plays, scenario.play)
    except FaultError as fault:
        return fault
    except NotSpokenError:
        return "not spoken"
    finally:
        for wire in wires:
            wire.stop()
        thread.join()
        for one in (puppet, *puppet.others):
            one.disconnect()
    return None


def _carry_out(steps: Steps, puppet: Puppet) -> None:
    with suppress(grpc.RpcError):  # the kit has ended the play, or this call, which it blames
        steps(puppet)


def explain(outcomes: list[Outcome]) -> list[str]:
    """What did not pass, and why, for the message of a failing test."""
    return [
        f"{one.scenario}: {one.verdict} {one.fault or ''}\n" + "\n".join(one.output)
        for one in outcomes
        if one.verdict != "passed"
    ]
