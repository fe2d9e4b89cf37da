"""Connections between workers and shards are cut, at every step: each commit counts once, and no worker ends.

Under rule downpour with deltas of 1 each element of theta is the number of commits, clock - 1.
In the full form (GEMPS_TEST_FULL=1) each training under random cuts takes a minute.
"""

import random
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_worker.client import ClientEvent, ClientSettings, Observer, channel
from numpy.typing import NDArray

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard
from gem_core.wire_types import WireType
from tests.client.cutting_proxy import Direction
from tests.figures import Figures
from tests.forms import FULL
from tests.shards.behind_proxies import TRANSPORTS, BehindProxies, behind_proxies
from tests.shards.group import Worker
from tests.waiting import eventually

SECONDS = 60.0 if FULL else 10.0
WORKERS = 3
# A third is more than the 64 KiB that travel without `proceed`, so a commit has all steps.
MODEL = Layout([TensorSpec("counts", (60_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
CHUNK_BYTES = 32 << 10
ONES = memoryview(np.ones(MODEL.parameter_count, np.float32).tobytes())
ZEROS = memoryview(bytes(ONES.nbytes))
DIRECTIONS: tuple[Direction, ...] = ("to_server", "to_client")
QUICK = [("gRPC", 2), ("lane", 2), ("gRPC over TLS", 2)]
ALL = [(transport, shards) for shards in (1, 2, 3) for transport in TRANSPORTS]
CASES = [pytest.param(*one, marks=() if one in QUICK else pytest.mark.long) for one in ALL]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], BehindProxies]]:
    """Starts shards behind proxies, for one transport."""
    # A lane that was cut while it was opened is tried again at once, for else gRPC would replace it for a minute.
    monkeypatch.setattr(channel, "LANE_AGAIN_SECONDS", 0.0)
    started: list[Any] = []

    def start(transport: str, shards: int) -> BehindProxies:
        started.append(behind_proxies(shards, transport, tmp_path, rule="downpour", chunk_bytes=CHUNK_BYTES))
        return started[-1].__enter__()

    yield start
    for one in started:
        one.__exit__(None, None, None)


def ignore(_: ClientEvent) -> None:
    """Not to log a line for each cut."""


class OnesWorker(Worker):
    """Its deltas are 1; it checks each reply."""

    def __init__(self, servers: BehindProxies, number: int = 0) -> None:
        super().__init__(servers.address, number, MODEL, servers.of_client, on_event=ignore)
        self.applied = 0
        self.dropped = 0
        self.over_lane = 0

    def begin(self) -> None:
        """Join, upload zeros unless there are parameters, and pull."""
        if not self.client.join().has_parameters:
            self.client.initialize(ZEROS)
        self.check(self.pull())

    def commit_ones(self) -> None:
        outcome = self.client.commit(ONES, self.into)
        self.applied += outcome.applied
        self.dropped += not outcome.applied
        self.over_lane += self.client.transport == "lane"
        self.check(outcome.version.clock)

    def check(self, clock: int) -> None:
        assert set(self.parameters.tolist()) == {clock - 1}


def theta_of(servers: BehindProxies) -> set[float]:
    theta: NDArray[np.float32] = servers.group.parameters()
    return set(theta.tolist())


def piece_bytes(index: int, shards: int) -> int:
    """Bytes of a delta that go to this shard."""
    return PayloadFormat(Shard(index, shards).layout_of(MODEL), WireType.FLOAT32).byte_count


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("transport", "shards"), CASES)
def test_a_commit_that_is_cut_at_any_step_at_one_shard_counts_once(
    transport: str, shards: int, direction: Direction, serve: Callable[[str, int], BehindProxies]
) -> None:
    """Before the header, within it, between `proceed` and the footer; before and within `proceed`, and the reply."""
    servers = serve(transport, shards)
    worker = OnesWorker(servers)
    worker.begin()
    worker.commit_ones()
    half = piece_bytes(0, shards) // 2
    cuts = (0, 20, 60, 150, half, 2 * half - 100) if direction == "to_server" else (0, 10, 30, 100, 200, half)
    for proxy in servers.commits:
        for cut in cuts:
            proxy.cut_after(direction, cut)
            worker.commit_ones()
            servers.disarm()
    # gRPC replaces a lane that is cut while it is opened, and further cuts of that lane then meet nothing.
    assert len(cuts) * shards // 2 < servers.cuts <= len(cuts) * shards
    assert servers.cuts == len(cuts) * shards or transport.startswith("lane")
    assert worker.dropped == 0
    assert servers.group.clocks() == [1 + worker.applied] * shards
    assert theta_of(servers) == {worker.applied}
    worker.end()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("transport", ["gRPC", "lane"])
def test_a_shard_that_is_cut_once_the_other_has_all_bytes_gets_its_piece_again(
    transport: str, index: int, serve: Callable[[str, int], BehindProxies]
) -> None:
    servers = serve(transport, 2)
    worker = OnesWorker(servers)
    worker.begin()
    worker.commit_ones()
    proxy, other = servers.commits[index], servers.commits[1 - index]
    for cut in (100, piece_bytes(index, 2) // 2):
        complete = other.passed["to_server"] + piece_bytes(1 - index, 2)
        proxy.on_cut = lambda complete=complete: eventually(lambda: other.passed["to_server"] >= complete)
        proxy.cut_after("to_server", cut)
        worker.commit_ones()
    assert servers.cuts == 2
    assert theta_of(servers) == {worker.applied} == {3.0}
    worker.end()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("index", [0, 1])
def test_first_parameters_that_are_cut_at_one_shard_arrive_at_all(
    index: int, direction: Direction, serve: Callable[[str, int], BehindProxies]
) -> None:
    servers = serve("gRPC", 2)
    worker = OnesWorker(servers)
    worker.client.join()
    servers.commits[index].cut_after(direction, piece_bytes(index, 2) // 2 if direction == "to_server" else 10)
    worker.client.initialize(ZEROS)
    assert servers.cuts == 1
    worker.check(worker.pull())
    worker.commit_ones()
    assert theta_of(servers) == {1.0}
    worker.end()


def test_workers_whose_join_and_pull_are_cut_at_one_shard_train(serve: Callable[[str, int], BehindProxies]) -> None:
    servers = serve("gRPC", 2)
    first = OnesWorker(servers)
    first.begin()
    for number, (proxy, direction) in enumerate(product(servers.commits, DIRECTIONS), 1):
        worker = OnesWorker(servers, number)
        proxy.cut_after(direction, 100)
        worker.client.join()
        proxy.cut_after(direction, 10 if direction == "to_server" else piece_bytes(0, 2) // 2)
        worker.check(worker.pull())
        worker.commit_ones()
        worker.end()
    assert servers.cuts == 8
    assert theta_of(servers) == {4.0}
    first.client.close()


def test_a_pull_without_a_session_that_is_cut_at_one_shard_is_repeated(
    serve: Callable[[str, int], BehindProxies],
) -> None:
    servers = serve("gRPC", 2)
    worker = OnesWorker(servers)
    worker.begin()
    worker.commit_ones()
    with Observer(servers.address, wait=60.0, settings=ClientSettings(backoff_first=0.01)) as observer:
        for proxy in servers.commits:
            proxy.cut_after("to_client", piece_bytes(0, 2) // 2)
            pulled = observer.pull()
            assert pulled is not None
            assert pulled.version.clock == 2
            assert pulled.payload == ONES
    assert servers.cuts == 2
    worker.end()


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize(("transport", "shards"), ALL)
def test_no_worker_ends_while_connections_are_cut_at_random(
    transport: str, shards: int, serve: Callable[[str, int], BehindProxies], figures: Figures
) -> None:
    servers = serve(transport, shards)
    workers = [OnesWorker(servers, number) for number in range(WORKERS)]
    errors: list[BaseException] = []
    is_over = threading.Event()

    def train(worker: OnesWorker) -> None:
        try:
            worker.begin()
            while not is_over.is_set():
                worker.commit_ones()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=[worker]) for worker in workers]
    for thread in threads:
        thread.start()
    cut_at_random(servers, random.Random(shards), lambda: not errors)
    is_over.set()
    servers.disarm()
    for thread in threads:
        thread.join()
    applied = sum(worker.applied for worker in workers)
    figures(
        f"cut at random, {SECONDS:g} s, {transport}, {shards} shards",
        f"{servers.cuts} cuts, {applied} commits applied, {len(errors)} of {WORKERS} workers ended, "
        f"{sum(worker.dropped for worker in workers)} deltas dropped, clocks {servers.group.clocks()}, "
        f"theta {sorted(theta_of(servers))}",
    )
    assert errors == []
    assert servers.group.clocks() == [1 + applied] * shards
    assert theta_of(servers) == {applied}
    assert all(worker.applied for worker in workers)
    assert servers.cuts > SECONDS
    assert any(worker.over_lane for worker in workers) == transport.startswith("lane")
    for worker in workers:
        worker.end()


def cut_at_random(servers: BehindProxies, choose: random.Random, goes_on: Callable[[], bool]) -> None:
    """Cut connections for SECONDS: now or after some bytes, at both sides at once or at the server's later."""
    pause = threading.Event()
    left = SECONDS
    while left > 0 and goes_on():
        proxy = choose.choice(servers.all)
        proxy.server_learns_after = choose.choice([0.0, 0.0, choose.uniform(0.0, 1.0)])
        if choose.random() < 0.5:
            proxy.cut_one_of_all(choose)
        else:
            proxy.cut_after(choose.choice(DIRECTIONS), choose.randrange(piece_bytes(0, servers.shards)))
        seconds = choose.uniform(0.02, 0.25)
        pause.wait(seconds)
        left -= seconds
