"""The parts of the time-to-loss benchmark that need no root: links, tables, goals, snapshots."""

import os
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gem_worker.errors import TaskError
from gem_worker.tasks import idx_images

from benchmarks.time_to_loss import failures
from benchmarks.time_to_loss.__main__ import SEARCH_SEEDS, Results, main
from benchmarks.time_to_loss.contenders import CONTENDERS, GEMPS
from benchmarks.time_to_loss.contest import Outcome
from benchmarks.time_to_loss.delayed_link import QUEUE_SECONDS, Direction
from benchmarks.time_to_loss.verdicts import compared, judged, judged_goodput, table
from benchmarks.time_to_loss.worker_context import GO, READY, SNAPSHOTS, WorkerContext
from benchmarks.time_to_loss.workload import WORKLOADS, Muon, _fashion_mnist, compute_gradient
from benchmarks.time_to_loss.worlds import Host

RATE, DELAY = 1e6, 0.02


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_link_delays_frames_and_sends_them_at_its_rate(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    link = Direction(writing, RATE, DELAY)
    for frame in (b"a" * 10_000, b"b" * 10_000):
        link.accept(frame, 5.0)
    assert link.deliver(5.029) == pytest.approx(0.001)
    link.deliver(5.0301)
    assert os.read(reading, 65536) == b"a" * 10_000
    assert link.deliver(5.031) == pytest.approx(0.009)
    link.deliver(5.0401)
    assert os.read(reading, 65536) == b"b" * 10_000


def test_a_full_link_drops_frames(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    link = Direction(writing, RATE, DELAY)
    for _ in range(20):
        link.accept(b"a" * 10_000, 5.0)
    link.deliver(10.0)
    assert len(os.read(reading, 1 << 20)) == 10_000 * (round(QUEUE_SECONDS / 0.01) + 1)


def test_hosts_fail_at_random_around_their_means() -> None:
    found = list(islice(failures.random({0: 600.0, 1: 60.0, 2: 60.0}, 0), 2100))
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    rates = [sum(one.number == number for one in found) / found[-1].seconds for number in range(3)]
    assert rates == pytest.approx([1 / 600, 1 / 60, 1 / 60], rel=0.2)


def run(world: str, contender: str, seconds: float | None, sent: int = 1_000_000) -> dict[str, Any]:
    return {"world": world, "contender": contender, "seconds": seconds, "sent": sent, "curve": [(1.0, 2.5)]}


def test_goals_compare_medians() -> None:
    runs = [
        *(run("slow-worker", "gemps", seconds) for seconds in (10, 11, 90)),
        *(run("slow-worker", "ddp", seconds) for seconds in (62, 63, 64)),
        *(run("all-together", "gemps", 10) for _ in range(3)),
        *(run("all-together", "ddp", None) for _ in range(3)),
        *(run("all-together", "ddp-post-local-sgd-8", seconds) for seconds in (30, None, 40)),
        run("slow-network", "gemps", 10),
        run("slow-network", "ddp", None),
        run("slow-worker", "flower-fedavg-32", 60),
        run("slow-worker", "gemps-plain", 1),
        run("equal", "gemps", None),
        run("equal", "ddp", 10),
    ]
    assert list(judged(runs)) == [
        "equal: gemps did not reach the target: missed",
        "slow-worker: flower-fedavg-32 / gemps: 5.45, goal 5.00: met",
        "slow-network: gemps 10.0 s; no other reached the target: met",
        "failures: not decided",
        "all-together: ddp-post-local-sgd-8 / gemps: 4.00, goal 5.00: missed",
    ]
    assert "slow-worker: not decided" in judged(runs[-2:])
    lines = table(runs).splitlines()
    assert lines[0] == "| contender | equal | slow-worker | slow-network | all-together |"
    reached, not_reached = "10.0 s; 1 MB | 63.0 s (62.0 to 64.0); 1 MB", "loss 2.50 at 1 s; 1 MB"
    assert lines[3] == f"| ddp | {reached} | 0 of 1; {not_reached} | 0 of 3; {not_reached} |"
    assert "| 40.0 s (30.0 to not reached); 1 MB |" in lines[4]


def test_gemps_without_options_is_compared_with_the_fastest_other() -> None:
    runs = [
        run("slow-network", "gemps-plain", 1.0),
        run("slow-network", "ddp", None),
        run("slow-network", "torch-rpc", 50.0),
        run("slow-network", "flower-fedavg-32", 40.0),
        run("all-together", "gemps", 10.0),
        run("all-together", "ddp", None),
    ]
    assert compared(runs, "slow-network") == {"gemps", "flower-fedavg-32"}
    assert compared(runs, "all-together") == {"gemps"}


def test_goodput_is_the_median_share_against_its_goal() -> None:
    def run(contender: str, steps: int) -> dict[str, Any]:
        return {"contender": contender, "seconds": 300.0, "free": 1000, "steps": steps, "failures": 7}

    runs = [run("gemps-durable", 940), run("ddp", 100), run("gemps-durable", 960), run("gemps-durable", 955)]
    met, other = judged_goodput(runs)
    assert met == "gemps-durable: 0.955 (0.940 to 0.960); 21 failures in 900 s, goal 0.95: met"
    assert other == "ddp: 0.100; 7 failures in 300 s"
    assert [line.endswith("missed") for line in judged_goodput(runs[:1])] == [True]


def test_a_worker_fails_every_minute_and_another_first_in_each_round() -> None:
    found = [(one.seconds, one.number, one.absent) for one in islice(failures.periodic(4, first=2), 3)]
    assert found == [(10, 3, 20), (70, 4, 20), (130, 1, 20)]


@pytest.fixture(params=WORKLOADS)
def workload(request: pytest.FixtureRequest) -> str:
    """Each workload whose data set is here."""
    name = str(request.param)
    try:
        WORKLOADS[name].model(0)
    except TaskError as error:
        pytest.skip(str(error))
    return name


def test_a_workload_without_its_data_set_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(idx_images, "FASHION_MNIST_FOLDER", tmp_path / "share")
    monkeypatch.setattr("sys.argv", ["time_to_loss", "--workload", "fashion-mnist"])
    monkeypatch.chdir(tmp_path)
    _fashion_mnist.cache_clear()
    with pytest.raises(SystemExit):
        main()
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err


def test_one_worker_at_a_time_keeps_snapshots(workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (READY, SNAPSHOTS):
        (tmp_path / part).mkdir()
    (tmp_path / GO).touch()
    settings = {"SERVER": "", "RATE": "0.1", "SEED": "1", "FOLDER": str(tmp_path), "WORKLOAD": workload}
    for key, value in settings.items():
        monkeypatch.setenv(f"TTL_{key}", value)
    first, second = WorkerContext.from_environment(), WorkerContext.from_environment()
    model = first.model()
    compute_gradient(model, next(first.begin()))
    first.show(model, 1)
    second.show(model, 2)
    first.show(model, 3)
    (snapshot,) = (tmp_path / SNAPSHOTS).iterdir()
    assert snapshot.name.endswith("-1.npy")
    assert np.load(snapshot).size == sum(one.numel() for one in model.parameters())
    assert 0 < first.workload.held_out_loss(model) < 10


def test_the_fastest_rate_of_the_search_is_used_or_that_of_the_lowest_loss(tmp_path: Path) -> None:
    contender, results = CONTENDERS["ddp"], Results(tmp_path / "results.json")

    def search(rate: float, seconds: float | None, last: float) -> None:
        results.add(Outcome("equal", "ddp", "text", rate, 0, seconds, curve=[(1.0, last)]), "search")

    search(0.001, None, 2.5)
    search(0.002, None, 2.2)
    search(0.004, None, 2.3)
    assert results.best_rate(contender, "text") == 0.002
    search(0.008, 70.0, 1.9)
    assert Results(tmp_path / "results.json").best_rate(contender, "text") == 0.008
    results.add(Outcome("equal", "ddp", "text", 0.008, 1, 50.0), "runs")
    assert results.has_run(contender, "text", "equal", 1)
    assert not results.has_run(contender, "text", "equal", 2)
    assert not results.has_run(contender, "text", "failures", 1)


def test_the_search_doubles_the_highest_rate_while_it_is_the_fastest(tmp_path: Path) -> None:
    contender, results = CONTENDERS["ddp"], Results(tmp_path / "results.json")
    seconds = {0.002: (30.0, 32.0), 0.004: (28.0, 24.0), 0.008: (20.0, 31.0), 0.016: (None, 10.0), 0.032: (1.0, 1.0)}

    def search(results: Results) -> list[tuple[float, int]]:
        found = []
        for rate, seed in results.to_search(contender, "fashion-mnist"):
            outcome = Outcome("equal", "ddp", "fashion-mnist", rate, seed, seconds[rate][seed - SEARCH_SEEDS[0]])
            results.add(outcome, "search")
            found.append((rate, seed))
        return found

    assert search(results) == [(rate, seed) for rate in (0.002, 0.004, 0.008, 0.016) for seed in SEARCH_SEEDS]
    kept = Results(tmp_path / "results.json")
    assert kept.best_rate(contender, "fashion-mnist") == 0.008
    assert search(kept) == []
    assert next(kept.to_search(contender, "text")) == (0.002, SEARCH_SEEDS[0])


def test_a_contender_without_a_rate_is_not_searched(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    assert list(results.to_search(CONTENDERS["gemps"], "text")) == []
    assert results.best_rate(CONTENDERS["gemps"], "text") == 0


def test_only_plain_gemps_gives_its_server_options() -> None:
    host = Host("10.0.0.1", "server", Path("/group"))
    for name, options in (("gemps", []), ("gemps-adamw", []), ("gemps-plain", ["--rule=gem", "--eta=0.1"])):
        arguments = CONTENDERS[name].server(host, 0.1, Path("/run"))
        assert arguments == [*GEMPS, "--bind=10.0.0.1:50051", *options]


def test_muon_continues_from_its_state() -> None:
    workload = WORKLOADS["text"]
    models = [workload.model(0) for _ in range(2)]
    optimizers = [Muon(model, 0.002) for model in models]
    steady, restarted = models
    for step in range(4):
        if step == 2:
            restarted.load_state_dict(steady.state_dict())
            optimizers[1].load_state_dict(deepcopy(optimizers[0].state_dict()))
        for model, optimizer in zip(models, optimizers, strict=True):
            if step < 2 and model is restarted:
                continue
            optimizer.zero_grad()
            compute_gradient(model, next(workload.batches([step])))
            optimizer.step()
    pairs = zip(steady.parameters(), restarted.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
