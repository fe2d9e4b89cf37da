"""`gemps launch slurm` on a real cluster, with the lines of docs/engines/slurm.md."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gem_worker import evaluate_checkpoint
from gem_worker.settings import WorkerSettings

from tests.docs.blocks import blocks_of
from tests.engines.service import status_of
from tests.engines.slurm_cluster import NODES, PATIENCE, Cluster, cluster, why_not
from tests.figures import Figures
from tests.waiting import eventually

PAGE = Path(__file__).resolve().parents[2] / "docs/engines/slurm.md"
LINES = [block.text for block in blocks_of(PAGE) if block.runs]
(SETTINGS,) = [block.text for block in blocks_of(PAGE) if block.language == "toml"]
(SUBMIT,) = [f"cat > run.toml <<'END'\n{SETTINGS}END\n{text}" for text in LINES if "--nodes" in text]
(LOOK,) = [text for text in LINES if "gemps status" in text]
ADDRESS = LOOK.splitlines()[0]
(ADD_AND_REMOVE,) = [text for text in LINES if "scancel" in text]
COMMITS = 60_000
ENOUGH_COMMITS = 6000


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    with cluster(tmp_path) as made:
        yield made


class Job:
    """The page's job."""

    def __init__(self, slurm: Cluster, submit: str = SUBMIT) -> None:
        self.slurm = slurm
        slurm.run(submit)
        self.id = slurm.run('echo "$job"').strip()

    def status(self) -> dict[str, Any]:
        """What the server says; empty while it is away."""
        name, _, port = self.slurm.attempt(f'{ADDRESS}\necho "$address"').stdout.strip().rpartition(":")
        return status_of(f"{NODES[name]}:{port}") if name in NODES else {}

    def workers(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {one["name"]: one for one in self.status().get("workers", ())}

    def wait_for_commits(self, names: set[str], more: int = 500) -> None:
        """Wait until each of these workers has made `more` further commits."""
        before = eventually(self.workers, self.explain, patience=PATIENCE, interval=0.5)

        def moved() -> bool:
            now = self.workers()
            return all(
                name in now and int(now[name]["commits"]) >= int(before.get(name, {"commits": 0})["commits"]) + more
                for name in names
            )

        eventually(moved, self.explain, patience=PATIENCE, interval=0.5)

    def explain(self) -> str:
        return f"{self.states()}\n{self.slurm.explain(self.id)}"

    def states(self) -> dict[str, str]:
        return {name: one["state"] for name, one in self.workers().items()}

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.slurm.log(self.id).splitlines() if line.startswith('{"time')]
        return [line for line in lines if line.get("event") == event]

    def last_checkpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.slurm.folder / "run/latest/state.json").read_text(encoding="utf-8"))
        return found


@pytest.mark.timeout(1800)
def test_killed_workers_and_servers_return_and_the_run_finishes(slurm: Cluster, figures: Figures) -> None:
    job = Job(slurm)
    own = {f"slurm-{job.id}-0-{task}" for task in range(3)}
    job.wait_for_commits(own)

    slurm.process("work", task="1").kill()
    eventually(lambda: "gemps work exited with 137" in slurm.log(job.id), patience=PATIENCE)
    eventually(lambda: len(job.events("joined")) == 2 * 4, job.explain, patience=PATIENCE)
    job.wait_for_commits(own)

    slurm.process("serve").kill()
    eventually(lambda: len(job.events("resuming")) == 1, job.explain, patience=PATIENCE)
    job.wait_for_commits(own)
    assert {one["host_name"] for one in job.workers().values()} == {"n1", "n2"}

    *add, remove = ADD_AND_REMOVE.splitlines(keepends=True)
    slurm.run("".join(add))
    array = slurm.run('echo "$array"').strip()
    added = {f"slurm-{array}-{task}" for task in (1, 2)}
    job.wait_for_commits(added, more=50)
    slurm.run(remove)
    eventually(lambda: job.states().get(f"slurm-{array}-2") == "WORKER_STATE_LEFT", job.explain, interval=0.5)

    eventually(
        lambda: int(job.status().get("commits", 0)) >= ENOUGH_COMMITS, job.explain, patience=PATIENCE, interval=0.5
    )
    assert all(name in slurm.run(LOOK.replace("gemps status", "COLUMNS=200 gemps status")) for name in own)
    slurm.run('gemps finish "$address"')
    slurm.wait_for_state(job.id, "COMPLETED")
    ledger = {one["name"]: int(one["commits"]) for one in job.last_checkpoint()["workers"]}
    assert ledger.keys() == own | added
    assert sum(ledger.values()) == job.last_checkpoint()["commits"]
    ends = {one["worker"]: one for one in job.events("ended")}
    for name in own - {f"slurm-{job.id}-0-1"}:
        assert ends[name]["steps"] <= ledger[name] <= ends[name]["steps"] + ends[name]["dropped"]
    accuracy = evaluate_checkpoint(slurm.folder / "run/latest/model.safetensors", WorkerSettings()).accuracy
    assert accuracy >= 0.95
    figures("Slurm", f"{ledger}; accuracy {accuracy:.4f}")


@pytest.mark.timeout(900)
def test_shards_that_lose_one_end_and_resume_together(slurm: Cluster) -> None:
    commits = 6000
    job = Job(slurm, SUBMIT.replace("--workers 3", "--workers 2 --shards 2").replace(str(COMMITS), str(commits)))
    own = {f"slurm-{job.id}-0-{task}" for task in range(2)}
    job.wait_for_commits(own, more=100)
    primary, shard = (slurm.process("serve", argument=f"--shard={index}/2") for index in range(2))
    assert [one.environ()["SLURMD_NODENAME"] for one in (primary, shard)] == ["n1", "n2"]
    shard.kill()
    eventually(lambda: len(job.events("resuming")) == 2, job.explain, patience=PATIENCE)
    job.wait_for_commits(own, more=100)
    slurm.wait_for_state(job.id, "COMPLETED", patience=2 * PATIENCE)
    states = [
        json.loads((slurm.folder / f"run/shards/{index}/latest/state.json").read_text(encoding="utf-8"))
        for index in range(2)
    ]
    assert [state["clock"] for state in states] == [commits + 1] * 2
    assert {one["name"] for one in states[0]["workers"]} == own
    assert sum(one["commits"] for one in states[0]["workers"]) == states[0]["commits"] == commits


@pytest.mark.timeout(600)
def test_a_job_at_its_time_limit_leaves_and_resumes_when_requeued(slurm: Cluster) -> None:
    endless = SUBMIT.replace(str(COMMITS), "1000000000")
    job = Job(slurm, endless.replace("--sbatch=--nodes=2", "--sbatch=--time=1 --sbatch=--signal=B:USR1@30"))
    own = {f"slurm-{job.id}-0-{task}" for task in range(3)}
    job.wait_for_commits(own, more=100)
    ranks = {name: one["rank"] for name, one in job.workers().items()}

    slurm.wait_for_state(job.id, "PENDING")
    assert slurm.about(job.id)["Restarts"] == "1"
    left = {one["worker"]: one["reason"] for one in job.events("left")}
    assert left == dict.fromkeys(own, "terminated")
    before = job.last_checkpoint()["clock"]
    assert job.events("stopped")[-1]["clock"] == before

    slurm.run(f"scontrol update JobId={job.id} TimeLimit=10 StartTime=now")
    eventually(lambda: job.events("resuming"), job.explain, patience=PATIENCE)
    assert job.events("resuming")[0]["clock"] == before
    job.wait_for_commits(own, more=100)
    assert {name: one["rank"] for name, one in job.workers().items()} == ranks
    slurm.run('gemps finish "$address"')
    slurm.wait_for_state(job.id, "COMPLETED")


def test_a_job_fails_with_workers_or_a_server_that_cannot_run(slurm: Cluster) -> None:
    useless = Job(slurm, SUBMIT.replace("gemps work --batch-size 8", "gemps work --batch-size 0"))
    assert slurm.wait_for_state(useless.id, "FAILED")["ExitCode"] == "2:0"
    missing = Job(slurm, SUBMIT.replace("gemps work --batch-size 8", "no-such-program"))
    assert slurm.wait_for_state(missing.id, "FAILED")["ExitCode"] == "127:0"
    (slurm.folder / "file").touch()
    no_server = Job(slurm, SUBMIT.replace("--data-dir run", "--data-dir file"))
    assert slurm.wait_for_state(no_server.id, "FAILED")["ExitCode"] == "2:0"
    assert "restarting" not in slurm.log(useless.id) + slurm.log(missing.id) + slurm.log(no_server.id)


def test_what_sbatch_refuses_is_said(slurm: Cluster) -> None:
    done = slurm.attempt(SUBMIT.replace("--nodes=2", "--partition=nowhere"))
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert slurm.run("squeue --noheader") == ""


def test_a_job_ends_after_its_workers_have(slurm: Cluster) -> None:
    """A server without a budget, and scripts that end."""
    job = Job(slurm, SUBMIT.replace(f"commits = {COMMITS}\n", "").replace("gemps work --batch-size 8", "true"))
    slurm.wait_for_state(job.id, "COMPLETED", patience=240)
