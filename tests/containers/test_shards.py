"""The model on two servers: one is killed, both come back, and the budget is reached on both."""

from pathlib import Path

import pytest

from .project import Project, gemps_process, inspect, logs, wait_until

COMMITS = 1500
FILES = ("docker-compose.yml", "docker/compose.shards.yml")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_servers_hold_the_model_and_a_killed_one_comes_back(project: Project, tmp_path: Path) -> None:
    settings = {"GEMPS_COMMITS": COMMITS, "GEMPS_MIN_WORKERS": 2, "GEMPS_MODEL": "cnn"}
    with project.up("--scale", "worker=2", files=FILES, **settings) as up:
        wait_until(lambda: len(project.containers("shard-1")) == 1, "the second server's container", up)
        (primary,), (secondary,) = project.containers("server"), project.containers("shard-1")
        wait_until(lambda: "training starts" in logs(primary), "training has started", up)
        wait_until(lambda: sum(project.commits().values()) > 100, "commits", up)
        assert [shard["ready"] for shard in project.status()["shards"]["servers"]] == [True, True]
        assert all(logs(one).count("shares memory") == 2 for one in (primary, secondary))
        gemps_process(secondary).kill()
        wait_until(lambda: logs(secondary).count("serving on") == 2, "the killed server serves again", up)
        up.wait(900)

    assert up.returncode == 0
    assert set(project.exit_codes().values()) == {0}
    assert inspect(secondary)["RestartCount"] == 1
    sizes = []
    for service in ("server", "shard-1"):
        state, model = project.state(tmp_path, service)
        assert state["commits"] == sum(worker["commits"] for worker in state["workers"]) == COMMITS
        sizes.append(model.stat().st_size)
    assert max(sizes) < 0.6 * sum(sizes)
