"""Server and workers under a real Ray, with the commands of docs/engines/ray.md."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.ray_cluster import HEAD, OTHER, ROOT, START_SECONDS, Actor, Program, RayCluster, printed, ray_cluster
from tests.engines.service import status_of
from tests.waiting import eventually

RUN_SECONDS = 400.0
pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


def address_of(launch: Program) -> str:
    return launch.wait_for("server 127.").rpartition(" ")[2]


def await_commits(launch: Program, address: str, more: int = 200) -> dict[str, Any]:
    """Wait until this many further commits are applied; return the status."""
    first: list[int] = []

    def look() -> dict[str, Any]:
        status = status_of(address)
        first.extend([int(status["commits"])] if "commits" in status and not first else [])
        return status if first and int(status.get("commits", 0)) >= first[0] + more else {}

    return eventually(look, lambda: f"no {more} commits:\n{launch.text}", patience=START_SECONDS, interval=0.3)


def ranks(status: dict[str, Any]) -> dict[str, int]:
    return {worker["name"]: int(worker.get("rank", 0)) for worker in status["workers"]}


def test_killed_worker_and_server_come_back_and_the_run_is_finished(cluster: RayCluster) -> None:
    launch = cluster.start(printed("gemps launch ray --workers"))
    address = address_of(launch)
    eventually(lambda: len(working(address)) == 3, lambda: launch.text, patience=START_SECONDS, interval=0.3)
    before = await_commits(launch, address)
    names = ranks(before)
    assert len(names) == 3
    assert {worker["engine"] for worker in before["workers"]} == {"ray"}

    victim = cluster.actor("worker-0")
    os.kill(victim.pid, signal.SIGKILL)
    assert cluster.actor("worker-0", after=victim).name == victim.name
    eventually(lambda: not psutil.pid_exists(victim.program), patience=10.0)
    assert ranks(await_commits(launch, address)) == names

    server = cluster.actor("server")
    os.kill(server.program, signal.SIGKILL)
    assert cluster.actor("server", after=server).name == server.name
    assert ranks(await_commits(launch, address)) == names  # at the same address

    added = cluster.start(printed("gemps launch ray --server").replace("ADDRESS", address))
    eventually(lambda: len(set(working(address)) - set(names)) == 2, patience=START_SECONDS, interval=0.3)
    first, second = set(working(address)) - set(names)
    cluster.run(printed("python -c").replace("NAME", first))
    eventually(lambda: first not in working(address), interval=0.3)
    assert second in working(address)
    check_logs(cluster, cluster.actors()[second])

    assert launch.ended(RUN_SECONDS) == 0, launch.text
    assert added.ended(120.0) == 0, added.text
    check_ledger(cluster.home / "run/latest/state.json", workers=5)
    measured = cluster.run(f"{printed('gemps evaluate')} --json")
    assert json.loads(measured.splitlines()[-1])["accuracy"] >= 0.95


def working(address: str) -> list[str]:
    workers = status_of(address).get("workers", ())
    return [worker["name"] for worker in workers if worker.get("state") == "WORKER_STATE_TRAINING"]


def check_logs(cluster: RayCluster, actor: Actor) -> None:
    listed = cluster.run(printed("ray list actors"))
    assert actor.name in listed
    assert actor.id in listed
    command = printed("ray logs actor").replace("ID", actor.id)
    # Nodes answer for logs some time after their start.
    eventually(lambda: '"joined"' in cluster.output(command), lambda: cluster.output(command), interval=2.0)


def check_ledger(file: Path, workers: int) -> None:
    """Each applied commit is one worker's, once."""
    state = json.loads(file.read_text(encoding="utf-8"))
    assert state["finished_because"]
    assert len(state["workers"]) == workers
    assert sum(worker["commits"] for worker in state["workers"]) == state["commits"] == state["clock"] - 1
    assert sum(entry["last_applied"] for entry in state["ledger"]) == state["commits"]


def test_script_runs_as_a_job_with_its_runtime_env(cluster: RayCluster) -> None:
    examples = cluster.folder / "examples"
    shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("workers"))
    script = examples / "custom_training.py"
    script.write_text(
        f"import os\nprint(os.environ['GREETING'])\n{script.read_text(encoding='utf-8')}", encoding="utf-8"
    )
    environment = """--runtime-env-json '{"env_vars": {"GREETING": "hello"}}'"""
    said = cluster.run(printed("ray job submit").replace("submit", f"submit {environment}", 1), 240.0)
    assert len(re.findall(r"worker [01]: 200 steps", said)) >= 2, said
    assert "hello" in said
    check_ledger(cluster.home / "job/latest/state.json", workers=2)


def test_server_of_a_lost_node_resumes_on_another_and_workers_find_it(cluster: RayCluster) -> None:
    lost = cluster.add_node("127.0.0.4", 5)  # the only one that holds five actors
    folder = cluster.home / "moved"
    options = f"--workers 4 --set insecure=true --set durability=commit --data-dir {folder}"
    launch = cluster.start(f"gemps launch ray {options}")
    address = address_of(launch)
    assert address.startswith("127.0.0.4:")
    names = ranks(before := await_commits(launch, address))
    cluster.add_node("127.0.0.5", 5)
    cluster.lose(lost)
    moved = address.replace("127.0.0.4", "127.0.0.5")
    after = await_commits(launch, moved)
    assert int(after["commits"]) > int(before["commits"])
    assert ranks(after) == names
    cluster.run(f"gemps finish {moved}")
    assert launch.ended(120.0) == 0, launch.text
    check_ledger(folder / "latest/state.json", workers=4)


def test_shards_that_lose_one_end_and_resume_together(cluster: RayCluster) -> None:
    folder, commits = cluster.home / "sharded", 6000
    options = f"--workers 2 --shards 2 --set insecure=true --set eta=0.1 --set commits={commits} --data-dir {folder}"
    launch = cluster.start(f"gemps launch ray {options} -- gemps work --batch-size 16")
    address = address_of(launch)
    names = ranks(before := await_commits(launch, address))
    hosts = {one["address"].rpartition(":")[0] for one in before["shards"]["servers"]}
    assert {host or address.rpartition(":")[0] for host in hosts} == {HEAD, OTHER}

    primary, shard = cluster.actor("-server"), cluster.actor("-shard-1")
    os.kill(shard.program, signal.SIGKILL)
    for actor in (primary, shard):
        assert cluster.actor(actor.name, after=actor).name == actor.name
    assert ranks(await_commits(launch, address)) == names

    assert launch.ended(RUN_SECONDS) == 0, launch.text
    check_shards(folder, commits, workers=2)


def check_shards(folder: Path, commits: int, workers: int) -> None:
    """Both end at the budget."""
    files = [folder / f"shards/{index}/latest/state.json" for index in range(2)]
    check_ledger(files[0], workers)
    assert [json.loads(file.read_text(encoding="utf-8"))["clock"] for file in files] == [commits + 1] * 2


def test_interrupted_launch_ends_everything(cluster: RayCluster) -> None:
    folder = cluster.home / "interrupted"
    launch = cluster.start(f"gemps launch ray --workers 2 --set insecure=true --data-dir {folder}")
    await_commits(launch, address_of(launch))
    actors = cluster.actors().values()
    processes = [pid for one in actors for pid in (one.pid, one.program)]
    assert len(processes) == 6
    launch.process.send_signal(signal.SIGINT)
    assert launch.ended(120.0) == 130, launch.text
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in processes), patience=60.0)
    state = json.loads((folder / "latest/state.json").read_text(encoding="utf-8"))
    assert state["clock"] > 200  # written at the end: an interval is 60 s


def test_killed_launch_leaves_no_process(cluster: RayCluster) -> None:
    launch = cluster.start(f"gemps launch ray --workers 2 --set insecure=true --data-dir {cluster.home / 'killed'}")
    await_commits(launch, address_of(launch))
    processes = [pid for one in cluster.actors().values() for pid in (one.pid, one.program)]
    assert len(processes) == 6
    launch.process.kill()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in processes), patience=60.0)


def test_program_that_always_fails_is_restarted_as_often_as_allowed(cluster: RayCluster) -> None:
    told = cluster.folder / "starts"
    worker = f"sh -c 'echo $GEMPS_CLIENT_BACKOFF_FIRST >> {told}; exit 3'"
    options = "--server 127.0.0.1:1 --workers 1 --max-restarts 2"
    command = f"env GEMPS_CLIENT_BACKOFF_FIRST=0.7 gemps launch ray {options} -- {worker}"
    launch = cluster.start(command)
    assert launch.ended(120.0) == 1
    assert told.read_text(encoding="utf-8").split() == ["0.7"] * 3
    assert "-worker-0 is gone: " in launch.text


def test_settings_that_the_server_refuses_end_the_launch(cluster: RayCluster) -> None:
    folder = cluster.home / "file"
    folder.write_text("not a folder", encoding="utf-8")
    launch = cluster.start(f"gemps launch ray --workers 1 --set insecure=true --data-dir {folder}")
    assert launch.ended(120.0) == 1
    assert "-server is gone: exit code 2" in launch.text
    assert "--data-dir" in launch.text or str(folder) in launch.text
