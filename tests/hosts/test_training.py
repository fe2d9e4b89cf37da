"""A server on one host and workers on three others, run with the lines that README.md prints."""

import json
import re
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.figures import Figures
from tests.hosts.cluster import Cluster
from tests.hosts.run import Watch, last_words

README = Path(__file__).resolve().parents[2] / "README.md"
DELAY = 0.020  # seconds, each way
LOSS = 0.01


def readme_script(on: str, word: str) -> str:
    """The one script that the README prints for this machine and that holds `word`."""
    (script,) = [block.text for block in blocks_of(README) if block.runs and block.on == on and word in block.text]
    return script


@pytest.mark.long
@pytest.mark.timeout(900)
def test_workers_that_come_early_or_are_far_away_or_lose_packets_train_by_the_readmes_lines(
    hosts: Cluster, figures: Figures
) -> None:
    serve, work = readme_script("server", "gemps serve"), readme_script("workers", "gemps work")
    status = readme_script("server", "gemps status")
    budget = int(re.findall(r"--commits (\d+)", serve)[0])

    early = hosts.start("w1", "bash", "-ec", work)
    early.wait_for("waiting-for-server")
    server = hosts.start("s", "bash", "-ec", serve)
    server.wait_for("serving on 0.0.0.0:50051")
    watch = Watch(hosts)
    seen = hosts.start("s", "bash", "-ec", status)
    hosts.delay("w2", "10.77.0.112", DELAY)
    hosts.lose("w3", "10.77.0.13", LOSS)
    workers = {"w1": early, "w2": hosts.start("w2", "bash", "-ec", work), "w3": hosts.start("w3", "bash", "-ec", work)}
    codes = {program.host: program.wait() for program in (*workers.values(), server)}
    watched = [watch.program.wait(), seen.wait()]
    lost = [hosts.lost_packets("w3"), hosts.lost_packets("s")]

    assert codes == dict.fromkeys(("w1", "w2", "w3", "s"), 0)
    assert watched == [0, 0]
    assert "finished" in seen.text.splitlines()[-1]
    assert "connected: the server at 10.77.0.1:50051 answers" in early.text
    said = {host: last_words(worker) for host, worker in workers.items()}
    found = watch.workers()
    for host in sorted(said):
        round_trip = 1000 * said[host]["exchange_seconds"] / said[host]["steps"]
        figures(
            f"worker on {host}",
            f"{said[host]['steps']:.0f} commits, round trip {round_trip:.1f} ms, staleness "
            f"{found[host]['staleness_mean']:.1f}, waited {1000 * found[host]['wait_mean_seconds']:.3f} ms in queue",
        )
    figures(
        "a server host, three worker hosts",
        f"{budget} commits in {watch.newest['run_seconds']:.1f} s, fairness (Jain) {watch.newest['jain_index']:.3f}; "
        f"w2 is {1000 * DELAY:.0f} ms away, w3 lost {lost[0]} packets to it and {lost[1]} from it",
    )

    # The links were as bad as they were meant to be.
    assert min(lost) > 0
    assert said["w2"]["exchange_seconds"] / said["w2"]["steps"] > 2 * DELAY
    # All three worked, on three machines; nobody lost the session or a gradient.
    assert min(worker["steps"] for worker in said.values()) >= 20
    assert len({worker["host_id"] for worker in found.values()}) == 3
    assert [worker["sessions"] for worker in found.values()] == [1, 1, 1]
    assert [(worker["skipped"], worker["dropped"]) for worker in said.values()] == [(0, 0)] * 3
    # The workers' own counts, the server's and the checkpoint's agree with the budget.
    assert {host: worker["steps"] for host, worker in said.items()} == watch.commits()
    assert sum(watch.commits().values()) == budget
    state = json.loads((hosts.folder("s") / "state/latest/state.json").read_text(encoding="utf-8"))
    assert {worker["name"]: worker["commits"] for worker in state["workers"]} == {
        worker["name"]: worker["commits"] for worker in found.values()
    }
    evaluation = json.loads(hosts.run("s", "gemps", "evaluate", "state/latest/model.safetensors", "--json"))
    figures("accuracy on held-out digits", f"{evaluation['accuracy']:.4f}")
    assert evaluation["accuracy"] >= 0.9
