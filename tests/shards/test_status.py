"""What the servers of one run tell about it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from gem_server.durability import shard_files
from gem_worker.client import Observer
from prometheus_client.parser import text_string_to_metric_families

from gem_core.shards import Shard
from tests.client.real_server import RealServer
from tests.shards.group import MODEL, Group, Worker, serving
from tests.waiting import eventually

SHARDS = 3


def status_of(server: RealServer) -> Any:
    with Observer(server.address) as observer:
        return observer.get_status()


@pytest.fixture
def group() -> Iterator[Group]:
    with serving(SHARDS, rule="gem", dashboard="127.0.0.1:0", run="digits") as started:
        yield started


def test_the_primary_lists_all_shards(group: Group) -> None:
    before = status_of(group.servers[0])["shards"]
    assert [(one["begin"], one["end"]) for one in before["servers"]] == [(0, 0)] * SHARDS
    worker = Worker(group.address, 0)
    worker.begin()
    worker.pull()
    clocks = [worker.commit().version.clock for _ in range(3)]

    def reported() -> Any:
        found = status_of(group.servers[0])["shards"]
        return found if {one["clock"] for one in found["servers"]} == {clocks[-1]} else None

    found = eventually(reported)
    worker.end()
    assert (found["index"], found["count"], found["primary"]) == (0, SHARDS, "")
    shown = found["servers"]
    assert [one["index"] for one in shown] == [0, 1, 2]
    assert [one["address"] for one in shown] == [f":{server.port}" for server in group.servers]
    ranges = [Shard(index, SHARDS).range_of(MODEL.parameter_count) for index in range(SHARDS)]
    assert [slice(one["begin"], one["end"]) for one in shown] == ranges
    assert [one["ready"] for one in shown] == [True] * SHARDS
    assert all(one["anonymous_bytes"] > 1 << 20 for one in shown)


def test_all_shards_have_the_name_and_the_id_of_the_primarys_run(group: Group) -> None:
    found = {(status["run_name"], status["run_id"]) for status in map(status_of, group.servers)}
    ((name, identity),) = found
    assert name == "digits"
    assert len(identity) == 16


def test_a_secondary_says_which_shard_it_is_and_where_the_primary_is(group: Group) -> None:
    found = status_of(group.servers[2])["shards"]
    assert (found["index"], found["count"], found["primary"]) == (2, SHARDS, group.address)
    assert [(one["index"], one["address"]) for one in found["servers"]] == [(2, f":{group.servers[2].port}")]


FIELDS = ("mean_pi", "blocked_fraction", "clamped_fraction")
NORMS = ("proxy_norm", "drift_norm", "delta_norm", "update_norm")


def figures_of(status: Any) -> list[float]:
    """All statistics of a status."""
    workers = [
        value
        for one in status["workers"]
        for value in (
            *(one["statistics"][name] for name in FIELDS + NORMS),
            *(one[f"recent_{name}"] for name in FIELDS),
        )
    ]
    means = [status["means"][name] for name in ("commits", "staleness_mean", *FIELDS)]
    return [*(status[name] for name in FIELDS), *means, *workers]


def commit(worker: Worker, scale: float) -> Any:
    """Commit a delta without zeros."""
    values = (scale * (1 + np.arange(MODEL.parameter_count) % 97)).astype(np.float32)
    return worker.client.commit(memoryview(values.tobytes() + bytes(8)), worker.into).verdict


def drive(address: str) -> list[tuple[float, ...]]:
    """Commit in a fixed order; return the verdicts' statistics."""
    workers = [Worker(address, number) for number in range(2)]
    for worker in workers:
        worker.begin()
        worker.pull()
    return [commit(worker, 1e-3 * (step - 2)).statistics for step in (0, 1, 3, 4) for worker in workers]


def test_statistics_are_those_of_one_server() -> None:
    with serving(1, rule="gem") as alone:
        verdicts = drive(alone.address)
        expected = figures_of(status_of(alone.servers[0]))
    assert len(expected) == 28
    assert expected[0] not in (0, 1)
    with serving(SHARDS, rule="gem") as group:
        assert np.array(drive(group.address)) == pytest.approx(np.array(verdicts), rel=1e-5)

        def combines() -> bool:
            return figures_of(status_of(group.servers[0])) == pytest.approx(expected, rel=1e-5)

        eventually(combines, lambda: (figures_of(status_of(group.servers[0])), expected))


def test_means_of_the_run_are_those_of_one_server_also_after_a_restart(tmp_path: Path) -> None:
    """And after the shards were merged, and the whole model was divided again."""

    def means(address: str) -> Any:
        with Observer(address) as observer:
            return observer.get_status().get("means")

    settings: dict[str, Any] = {"rule": "gem", "durability": "interval"}
    with serving(1, tmp_path / "alone", **settings) as alone:
        drive(alone.address)
    with serving(1, tmp_path / "alone", resume=True, **settings) as alone:
        before = means(alone.address)
        drive(alone.address)
        expected = means(alone.address)
    assert (before["commits"], expected["commits"]) == (8, 16)
    with serving(SHARDS, tmp_path / "group", **settings) as group:
        drive(group.address)
    folders = [tmp_path / "group" / str(index) for index in range(SHARDS)]
    shard_files.merge(folders, tmp_path / "merged" / "0")
    with serving(1, tmp_path / "merged", resume=True, **settings) as merged:
        assert means(merged.address) == pytest.approx(before, rel=1e-5)
    shard_files.split(tmp_path / "merged" / "0", 2, tmp_path / "divided")
    for folder, count in ((tmp_path / "group", SHARDS), (tmp_path / "divided", 2)):
        with serving(count, folder, resume=True, **settings) as group:
            drive(group.address)

            def combines(address: str = group.address) -> bool:
                return bool(means(address) == pytest.approx(expected, rel=1e-5))

            eventually(combines, lambda address=group.address: (means(address), expected))


def test_the_history_has_norms_of_the_whole_model() -> None:
    with serving(SHARDS, rule="downpour") as group, Observer(group.address) as observer:
        worker = Worker(group.address, 0)
        worker.begin()
        worker.pull()

        def has_the_norm() -> bool:
            norm = commit(worker, 1e-6).statistics.delta_norm
            intervals = observer.get_history()["intervals"]
            # Updates are equal, so it does not matter when they are reported.
            return bool(intervals) and intervals[-1].get("update_norm") == pytest.approx(norm, rel=1e-5)

        eventually(has_the_norm)
        worker.end()


def test_metrics_and_dashboard_show_the_shards(group: Group) -> None:
    url = group.servers[0].server.dashboard_url
    primary = group.servers[0].server.primary
    assert primary is not None
    group.servers[0].until(lambda: not primary.missing)  # the others' reports
    with urlopen(f"{url}metrics") as response:
        found = {one.name: one for one in text_string_to_metric_families(response.read().decode())}
    assert [one.labels["shard"] for one in found["gemps_info"].samples] == ["0/3"]
    for name in ("ready", "clock_commits", "memory_anonymous_bytes"):
        assert [one.labels for one in found[f"gemps_shard_{name}"].samples] == [
            {"shard": str(i)} for i in range(SHARDS)
        ]
    assert [one.value for one in found["gemps_shard_ready"].samples] == [1, 1, 1]
    with urlopen(f"{url}events") as events:
        status = next(json.loads(line[6:]) for line in events if line.startswith(b"data: {"))
    assert [one["address"] for one in status["shards"]["servers"]] == [f":{server.port}" for server in group.servers]


def test_a_server_alone_lists_no_shards() -> None:
    server = RealServer(dashboard="127.0.0.1:0")
    try:
        assert "shards" not in status_of(server)
        with urlopen(f"{server.server.dashboard_url}metrics") as response:
            assert b"shard" not in response.read()
    finally:
        server.stop()
