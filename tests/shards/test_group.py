"""Starting and joining several servers."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from gem_server.errors import Reason, RefusedError, StartupError
from gem_server.flow.commit_order import Piece
from gem_server.flow.requests import InitializeRequest
from gem_server.settings import ServerSettings
from gem_server.shards.operations import (
    CommitExpected,
    CommitOrdered,
    CommitRefused,
    Operation,
    ParametersExpected,
    ParametersHeld,
    PieceHeld,
    Report,
)
from gem_server.shards.primary import PrimaryOrder, Secondary
from gem_server.shards.secondary import SecondaryOrder
from gem_server.state.sessions import Session
from gem_worker import ParameterServer
from gem_worker.client import Observer, RunFinishedError, ServerRefusedError
from gem_worker.client.commit import Committer
from gemps.v1 import (
    observer_pb2_grpc,
    parameters_pb2,
    session_pb2,
    shards_pb2,
    status_pb2,
    transfer_pb2,
    worker_pb2_grpc,
)
from pydantic import ValidationError
from torch import nn

from gem_core import ElementType, Layout, TensorKind, TensorSpec
from gem_core.checksum import crc32c
from gem_core.shards import Shard
from gem_core.wire_types import WireType, encode
from tests.client.real_server import RealServer
from tests.shards.group import MODEL, Group, Worker, free_port, serving
from tests.waiting import eventually, happens, happens_async

FOLLOW = "/gemps.v1.ShardService/Follow"


@pytest.fixture
def group() -> Iterator[Group]:
    with serving(3, rule="downpour") as started:
        yield started


def follow(address: str, **hello: Any) -> grpc.RpcError:
    """Return the refusal of a secondary whose first message this is."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            FOLLOW,
            request_serializer=shards_pb2.FollowRequest.SerializeToString,
            response_deserializer=shards_pb2.FollowResponse.FromString,
        )
        fields = {"shard": 1, "shards": 3, "address": ":1", "rule": "{}", "clocks": [0]} | hello
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([shards_pb2.FollowRequest(hello=shards_pb2.ShardHello(**fields))])))
        return refused.value


@pytest.mark.timeout(60)
def test_an_upload_that_another_session_overtakes_begins_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary begins the second attempt late, so that shard 2 could take its upload for one of the first."""
    held: dict[int, list[Report]] = {1: [], 2: []}

    def overtake(shard: int) -> None:
        secondary = group.servers[shard].server.secondary
        assert secondary is not None
        report = secondary.report

        def note(one: Report) -> None:
            if isinstance(one, ParametersHeld):
                held[shard].append(one)
                if shard == 1 and len(held[1]) == 1:
                    asyncio.get_running_loop().call_soon(secondary.receive, ParametersExpected(b"of another", 7))
                    return
            report(one)

        secondary.report = note

    for shard in held:
        group.servers[shard].in_loop(lambda shard=shard: overtake(shard))
    initializing = PrimaryOrder.initializing

    @asynccontextmanager
    async def late(self: PrimaryOrder, session: Session) -> AsyncIterator[None]:
        if held[1]:
            await happens_async(lambda: len(held[2]) == 2, patience=0.5)
        async with initializing(self, session):
            yield

    monkeypatch.setattr(PrimaryOrder, "initializing", late)
    worker = Worker(group.address, 0)
    worker.begin()
    worker.pull()
    assert held[1]
    assert np.array_equal(worker.parameters, group.parameters())
    assert worker.commit().applied
    worker.end()


def test_a_repeated_upload_that_comes_after_the_parameters_has_lost(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the connection to a secondary breaks after its piece, and the primary orders the parameters meanwhile."""
    outcomes: list[bool] = []
    waiting: list[asyncio.Task[None]] = []
    holds_back = SecondaryOrder.holds_back

    def twice(self: SecondaryOrder, request: Any) -> bool:
        if isinstance(request, InitializeRequest) and not waiting:
            again = InitializeRequest(request.session, request.parameters.copy(), request.buffers, b"")

            async def repeat() -> None:
                await request.done
                holds_back(self, again)
                outcomes.append(await again.done)

            waiting.append(asyncio.get_running_loop().create_task(repeat()))
        return holds_back(self, request)

    monkeypatch.setattr(SecondaryOrder, "holds_back", twice)
    worker = Worker(group.address, 0)
    worker.begin()
    eventually(lambda: outcomes)
    assert outcomes == [False]
    worker.end()


def test_a_secondary_refuses_what_is_for_the_primary(group: Group) -> None:
    with Observer(group.servers[1].address) as observer:
        for action in ("finish", "checkpoint"):
            with pytest.raises(ServerRefusedError, match="this is shard 1/3: ask shard 0/3"):
                observer.control(action, "a mistake")
    with Observer(group.address) as observer:
        assert observer.get_status()["run_state"] != "RUN_STATE_FINISHED"


def refusal(address: str, call: str, request: Any) -> str:
    """Return why the server refuses this call."""
    with grpc.insecure_channel(address) as channel:
        kind = observer_pb2_grpc.ObserverServiceStub if call == "GetStatus" else worker_pb2_grpc.WorkerServiceStub
        with pytest.raises(grpc.RpcError) as refused:
            getattr(kind(channel), call)(request, timeout=30, wait_for_ready=True)
    return str(refused.value.details())


def test_a_worker_at_a_secondary_learns_where_the_primary_is(group: Group) -> None:
    request = session_pb2.JoinRequest(session_id=bytes(range(16)), worker_name="lost")
    assert f"give workers its address, {group.address}" in refusal(group.servers[1].address, "Join", request)


def test_a_primary_says_which_shards_it_waits_for() -> None:
    address = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(3) as threads:
        starting = [threads.submit(RealServer, shard="0/3", bind=address)]
        waits = refusal(address, "GetStatus", status_pb2.GetStatusRequest())
        starting += [threads.submit(RealServer, shard=f"{index}/3", primary=address) for index in (1, 2)]
        Group([one.result() for one in starting]).stop()
    assert "waits for shards to connect: 1, 2" in waits


def test_a_group_refuses_other_shards(group: Group) -> None:
    rule = (
        '{"rule": "downpour", "durability": "none", '
        '"staging_buffers": 0, "data_dir": false, "settings": {"weight_decay": 0.0}}'
    )
    assert "give both the same --rule, its settings" in follow(group.address).details()
    for invalid in ("[", "[]", '{"rule": %s}' % ("[" * 900 + "]" * 900), "[" * 9000):
        assert "this shard differs from the primary in " in follow(group.address, rule=invalid).details()
    assert "is connected already" in follow(group.address, rule=rule).details()
    assert "give all the same number" in follow(group.address, rule=rule, shards=4).details()
    assert "with shard < shards" in follow(group.address, shard=3).details()
    assert "start it with --shard 0/N" in follow(group.servers[1].address).details()
    worker = Worker(group.address, 0)
    worker.begin()
    worker.pull()
    assert worker.commit().applied
    worker.end()


def test_a_shard_with_another_rule_does_not_start() -> None:
    with serving(2, rule="downpour") as started, pytest.raises(StartupError, match="give both the same --rule"):
        RealServer(shard="1/2", primary=started.address, rule="gem")


@pytest.mark.parametrize("setting", [{"staging_buffers": 7}, {"durability": "interval"}])
def test_a_shard_with_a_setting_that_must_be_equal_does_not_start(setting: dict[str, Any], tmp_path: Path) -> None:
    message = rf"in {next(iter(setting))}, .*limits.staging_buffers and --durability"
    with serving(2, tmp_path, rule="gem") as started, pytest.raises(StartupError, match=message):
        RealServer(shard="1/2", primary=started.address, data_dir=tmp_path / "other", rule="gem", **setting)


def test_all_shards_have_as_many_staging_buffers() -> None:
    """Otherwise a worker in strict turns could wait for a buffer that has the piece of a later one."""
    # Half of it is just short of a fifth of SMALL_BUFFERS_BYTES; the last shard has more than half.
    layout = Layout(
        [
            TensorSpec("weight", (104_703,), ElementType.FLOAT32, TensorKind.PARAMETER),
            TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
        ]
    )
    with serving(2) as group:
        worker = Worker(group.address, 0, layout)
        worker.begin()
        assert [server.server.staging.capacity for server in group.servers] == [5, 5]
        worker.end()


@pytest.mark.parametrize("pieces", [["stalled"], ["stalled", "stalled"], ["complete", "stalled"]])
def test_a_stalled_upload_of_first_parameters_makes_room_for_another(pieces: list[str]) -> None:
    with serving(2, stall_timeout=1.0, rule="downpour") as group, ThreadPoolExecutor(1) as threads:
        hung = Worker(group.address, 0)
        hung.client.join()
        session_id = group.servers[0].in_loop(lambda: group.servers[0].server.sessions.live()[0].session_id)
        stop = threading.Event()

        def parts(index: int) -> Iterator[parameters_pb2.InitializeRequest]:
            layout = Shard(index, 2).layout_of(MODEL)
            data = bytes(4 * layout.parameter_count + layout.buffer_bytes)
            header = parameters_pb2.InitializeHeader(session_id=session_id, byte_count=len(data))
            yield parameters_pb2.InitializeRequest(header=header)
            if pieces[index] == "complete":
                footer = transfer_pb2.Footer(crc32c=crc32c(data))
                yield parameters_pb2.InitializeRequest(chunk=data, footer=footer)
            stop.wait()

        with contextlib.ExitStack() as stack:
            stack.callback(stop.set)
            calls = []
            for index, server in enumerate(group.servers[: len(pieces)]):
                channel = stack.enter_context(grpc.insecure_channel(server.address))
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                calls.append(stub.Initialize.future(parts(index)))
            for server, call in zip(group.servers, calls, strict=False):
                # On a busy machine the upload may have stalled, and its call ended, before the test looks.
                server.until(
                    lambda server=server, call=call: (
                        server.server.staging.free < server.server.staging.capacity or call.done()
                    )
                )
            other = Worker(group.address, 1)
            threads.submit(other.begin).result(30)
            other.pull()
            assert other.commit().applied
            # Refused for its stall, or told that the other worker's parameters are there, whichever comes first.
            already = parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
            assert all(call.exception() is not None or call.result().outcome == already for call in calls)
        other.end()


def test_a_worker_waits_for_memory_of_a_secondary() -> None:
    with serving(2, rule="gem") as group, ThreadPoolExecutor(1) as threads:
        first, second = Worker(group.address, 0), Worker(group.address, 1)
        first.begin()
        memory = group.servers[1].server.sessions.memory
        limit, memory.limit = memory.limit, memory.reserved
        begun = threads.submit(second.begin)
        workers = group.servers[0].server.sessions.workers
        eventually(lambda: (worker := workers.get("worker-1")) is not None and worker.sessions > 2)
        assert not begun.done()
        memory.limit = limit
        begun.result(30)
        second.pull()
        assert second.commit().applied
        first.end()
        second.end()


def test_a_model_that_a_secondary_can_never_hold_is_refused_at_once() -> None:
    with serving(2, rule="gem") as group:
        group.servers[1].server.sessions.memory.limit = 1000
        worker = Worker(group.address, 0)
        with pytest.raises(ServerRefusedError, match="raise --memory-limit"):
            worker.begin()
        worker.client.close()


def test_a_repeated_commit_needs_its_pieces_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary refuses the commit while the report of shard 1 about its piece is late, and so is the refusal."""
    waits: list[Piece] = []
    reports: list[Report] = []
    operations: list[Operation] = []
    wait_complete = PrimaryOrder.wait_complete
    secondary = group.servers[1].server.secondary
    assert secondary is not None
    report, receive = secondary.report, secondary.receive

    async def refuse_once(self: PrimaryOrder, piece: Piece) -> None:
        waits.append(piece)
        if len(waits) == 1:
            await happens_async(lambda: reports)
            raise RefusedError(Reason.STALLED, "try again", retry_after=0.05)
        await wait_complete(self, piece)

    def keep_report(one: Report) -> None:
        (reports.append if isinstance(one, PieceHeld) and not reports else report)(one)

    def keep_operation(one: Operation) -> None:
        (operations.append if operations or isinstance(one, CommitRefused) else receive)(one)

    def deliver() -> None:
        secondary.receive = receive  # type: ignore[method-assign]
        for one in operations:
            receive(one)

    worker = Worker(group.address, 0)
    worker.begin()
    worker.pull()
    monkeypatch.setattr(PrimaryOrder, "wait_complete", refuse_once)
    secondary.report, secondary.receive = keep_report, keep_operation  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        commit = threads.submit(worker.commit)
        eventually(lambda: len(waits) == 2)
        group.servers[1].in_loop(lambda: report(reports[0]))
        happens(lambda: any(isinstance(one, CommitOrdered) for one in operations), patience=0.5)
        group.servers[1].in_loop(deliver)
        assert commit.result(30).applied
    worker.end()


def test_a_refusal_that_the_primary_does_not_give_ends_the_call(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard may refuse alone, for example an old token."""
    monkeypatch.setattr("gem_worker.client.shards.REFUSAL_SECONDS", 0.2)
    commit = Committer.commit

    def refuse(self: Committer, *arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith("gemps-shard"):
            raise ServerRefusedError("CREDENTIALS", "a wrong token")
        return commit(self, *arguments, **options)

    worker = Worker(group.address, 0)
    worker.begin()
    worker.pull()
    monkeypatch.setattr(Committer, "commit", refuse)
    with ThreadPoolExecutor(1) as threads, pytest.raises(ServerRefusedError, match="a wrong token"):
        threads.submit(worker.commit).result(30)
    worker.end()


def test_shards_without_and_with_a_data_directory_do_not_start_together(tmp_path: Path) -> None:
    """Their checkpoints would never be complete."""
    with (
        serving(2, tmp_path / "group") as started,
        pytest.raises(StartupError, match=r"data_dir, false, not true: .*--data-dir to all shards or none"),
    ):
        RealServer(shard="1/2", primary=started.address)


def test_a_shard_with_other_durability_does_not_start(tmp_path: Path) -> None:
    """Each would wait for what the other never writes."""
    with serving(2, tmp_path / "group") as started:
        for own in ({}, {"data_dir": tmp_path / "1", "durability": "interval"}):
            with pytest.raises(
                StartupError,
                match=r'in durability, "(none|interval)", not "commit".*: .*--data-dir to all',
            ):
                RealServer(shard="1/2", primary=started.address, **own)


@pytest.mark.parametrize("wire_type", [WireType.INT4_BLOCK, WireType.BFLOAT16])
def test_encoded_deltas_are_cut_between_blocks(wire_type: WireType) -> None:
    def theta(shards: int) -> Any:
        with serving(shards, rule="downpour") as group:
            worker = Worker(group.address, 0, delta_wire_types=(wire_type,))
            worker.begin()
            worker.pull()
            for seed in (1, 7):
                values = np.random.default_rng(seed).standard_normal(worker.parameters.size).astype(np.float32)
                worker.client.commit(memoryview(bytes(encode(wire_type, values)) + bytes(8)), worker.into)
            worker.end()
            return group.parameters()

    assert np.array_equal(theta(3), theta(1))


def test_a_worker_whose_budget_is_spent_is_sent_home_by_all_shards() -> None:
    with serving(3, rule="downpour", commits=5) as group:
        workers = [Worker(group.address, number) for number in range(2)]
        for worker in workers:
            worker.begin()
            worker.pull()
        finished = [workers[number % 2].commit().run_finished for number in range(5)]
        assert finished == [False] * 4 + [True]
        assert group.clocks() == [6, 6, 6]
        for worker in workers:
            worker.end()


def test_a_commit_that_meets_the_end_of_the_run_ends_on_all_shards(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard refuses its piece before it hears that the primary expects the commit."""
    late: list[tuple[Secondary, CommitExpected]] = []
    refused: list[RefusedError] = []
    put, refuse = Secondary.put, SecondaryOrder.refused

    def put_late(self: Secondary, operation: Operation) -> bool:
        if isinstance(operation, CommitExpected):
            late.append((self, operation))
            return True
        return put(self, operation)

    def note(self: SecondaryOrder, piece: Piece, refusal: RefusedError) -> None:
        refuse(self, piece, refusal)
        refused.append(refusal)

    worker = Worker(group.address, 0)
    worker.begin()
    worker.pull()
    monkeypatch.setattr(Secondary, "put", put_late)
    monkeypatch.setattr(SecondaryOrder, "refused", note)
    with ThreadPoolExecutor(1) as threads, Observer(group.address) as observer:
        commit = threads.submit(worker.commit)
        eventually(lambda: len(late) == 2)
        observer.control("finish", "enough")
        eventually(lambda: len(refused) == 2)
        group.servers[0].in_loop(lambda: [put(*one) for one in late])
        with pytest.raises(RunFinishedError):
            commit.result(30)
    worker.end()


def test_a_script_trains_on_shards_as_on_one_server() -> None:
    def train(shards: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(40, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 10))
        inputs, labels = torch.randn(64, 40), torch.randint(10, (64,))
        with (
            serving(shards, rule="gem", eta=0.1, steps=20) as group,
            ParameterServer(group.address, model, name="worker") as server,
        ):
            while True:
                server.step(nn.functional.cross_entropy(model(inputs), labels), samples=64)
        return model.state_dict()

    one, three = train(1), train(3)
    assert all(torch.equal(one[name], three[name]) for name in one)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shard": "1/2"}, "needs --primary HOST:PORT"),
        ({"shard": "0/2", "primary": "host:1"}, "such as --shard 1/2, and this is 0/2"),
        ({"shard_address": "host:1"}, "--shard-address needs --primary"),
        ({"shard": "1/2", "primary": "host"}, "'host' is not HOST:PORT"),
        ({"shard": "0/2", "record": "trace"}, "--record is for one server"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServerSettings(**settings)
