"""One attempt of a commit ends at one shard, and what the other shards say to theirs; by raw calls."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from gem_server.flow.calls import TornUploadError
from gem_server.service.grpc_transport import GrpcTransport
from gem_server.shards.operations import CommitExpected
from gem_worker.client import ServerRefusedError
from gem_worker.client.rpc_status import failure
from gemps.v1 import commit_pb2, transfer_pb2, worker_pb2_grpc

from gem_core.checksum import crc32c
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard
from gem_core.wire_types import WireType
from tests.shards.group import MODEL, Group, Worker, serving

COMMIT_ID = 7
# A guard against a call that is never answered.
PATIENCE = 30.0


class Upload:
    """A Commit call of a session's first commit at one shard, driven message by message."""

    def __init__(self, group: Group, index: int, session_id: bytes, value: float = 1.0) -> None:
        server = group.servers[index]
        layout = Shard(index, len(group.servers)).layout_of(MODEL)
        parameters = np.full(layout.parameter_count, value, np.float32).tobytes()
        self._data = parameters.ljust(PayloadFormat(layout, WireType.FLOAT32).byte_count, b"\0")
        incarnation = server.in_loop(lambda: server.server.central.incarnation)
        self._header = commit_pb2.CommitHeader(
            session_id=session_id,
            sequence=1,
            base_version=transfer_pb2.Version(incarnation=incarnation, clock=1),
            wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
            byte_count=len(self._data),
            payload_crc32c=crc32c(self._data),
            commit_id=COMMIT_ID,
        )
        self._messages: SimpleQueue[commit_pb2.CommitRequest | None] = SimpleQueue()
        self._channel = grpc.insecure_channel(server.address)
        stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._call = stub.Commit(iter(self._messages.get, None), timeout=PATIENCE)

    def announce(self) -> None:
        self._messages.put(commit_pb2.CommitRequest(header=self._header))

    def receive(self) -> commit_pb2.CommitResponse:
        response: commit_pb2.CommitResponse = next(self._call)
        return response

    def begin(self) -> None:
        """Send the header, and wait for `proceed`."""
        self.announce()
        assert self.receive().HasField("proceed")

    def send_half(self) -> None:
        half = len(self._data) // 8 * 4
        self._messages.put(commit_pb2.CommitRequest(chunk=self._data[:half]))

    def send_all(self) -> None:
        footer = transfer_pb2.Footer(crc32c=crc32c(self._data))
        self._messages.put(commit_pb2.CommitRequest(chunk=self._data, footer=footer))

    def half_close(self) -> None:
        self._messages.put(None)

    def cancel(self) -> None:
        self._call.cancel()

    def refusal(self) -> ServerRefusedError:
        """The refusal that ends the call."""
        with pytest.raises(grpc.RpcError) as raised:
            self.receive()
        refused = failure(raised.value)
        assert isinstance(refused, ServerRefusedError), refused
        return refused

    def close(self) -> None:
        self._call.cancel()
        self._messages.put(None)
        self._channel.close()


Open = Callable[..., Upload]


@contextmanager
def session(shards: int) -> Iterator[tuple[Group, Open]]:
    """Shards with a session that holds clock 1; opens its Commit calls by the shard's number."""
    opened: list[Upload] = []
    with serving(shards, rule="downpour") as group:
        worker = Worker(group.address, 0)
        worker.begin()
        assert worker.pull() == 1

        def start(index: int, value: float = 1.0) -> Upload:
            opened.append(Upload(group, index, worker.client.session_id, value))
            return opened[-1]

        try:
            yield group, start
        finally:
            for upload in opened:
                upload.close()
            worker.client.close()


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("end", [Upload.cancel, Upload.half_close], ids=["cancelled", "half-closed"])
def test_a_call_that_ends_at_one_shard_makes_the_others_ask_for_the_commit_again(
    end: Callable[[Upload], None], lost: int
) -> None:
    with session(2) as (group, open_call):
        torn, complete = open_call(lost), open_call(1 - lost)
        for call in (torn, complete) if lost == 0 else (complete, torn):
            call.begin()  # the primary's first, for the other shard waits for it
        complete.send_all()
        torn.send_half()
        end(torn)
        asked = complete.refusal()
        assert (asked.reason, asked.retry_after) == ("STALLED", 0.1)
        if end is Upload.half_close:
            assert torn.refusal().reason == "OUT_OF_ORDER"
        again = [open_call(index) for index in range(2)]
        for call in again:
            call.begin()
        for call in again:
            call.send_all()
        assert [call.receive().verdict.version.clock for call in again] == [2, 2]
        assert group.clocks() == [2, 2]


def test_a_call_whose_loss_grpc_reports_as_an_error_is_lost_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails before the call is cancelled makes gRPC report an error."""
    receive_into = GrpcTransport.receive_into
    failed: list[GrpcTransport] = []

    async def fail_once(self: GrpcTransport, sink: Any, proceed: bytes) -> Any:
        try:
            return await receive_into(self, sink, proceed)
        except (asyncio.CancelledError, TornUploadError):
            if failed:
                raise
            failed.append(self)
            raise grpc.aio.InternalError("the write failed") from None

    monkeypatch.setattr(GrpcTransport, "receive_into", fail_once)
    with session(2) as (_, open_call):
        torn, complete = open_call(0), open_call(1)
        torn.begin()
        complete.begin()
        torn.cancel()
        assert complete.refusal().reason == "STALLED"
        assert failed


def test_a_final_refusal_of_one_shard_is_given_to_a_piece_that_comes_late() -> None:
    with session(3) as (group, open_call):
        calls = [open_call(0), open_call(1, value=float("nan"))]
        for call in calls:
            call.begin()
        calls[1].send_all()
        assert [call.refusal().reason for call in reversed(calls)] == ["BAD_VALUE", "BAD_VALUE"]
        # What the primary said before this Join has arrived at the other shards.
        other = Worker(group.address, 1)
        other.client.join()
        late = open_call(2)
        late.announce()
        refusal = late.refusal()
        assert (refusal.reason, refusal.retry_after) == ("BAD_VALUE", None)
        other.client.close()


def test_a_repeat_that_waits_for_a_piece_which_is_given_up_is_asked_for_again() -> None:
    with session(2) as (group, open_call):
        primary, first = open_call(0), open_call(1)
        primary.begin()
        first.begin()
        first.send_all()
        shard = group.servers[1]
        (member,) = shard.server.sessions.live()
        shard.until(lambda: member.queued_sequence == 1)
        served = member.commit_call
        first.cancel()
        repeat = open_call(1)
        repeat.announce()
        shard.until(lambda: member.commit_call not in (None, served))
        secondary = shard.server.secondary
        assert secondary is not None
        shard.in_loop(lambda: secondary.receive(CommitExpected(member.session_id, COMMIT_ID + 1, 99)))
        refusal = repeat.refusal()
        assert (refusal.reason, refusal.retry_after) == ("STALLED", 0.1)
