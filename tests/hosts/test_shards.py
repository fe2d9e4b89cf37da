"""A worker that cannot reach one of two servers makes no commits; the other worker continues, and both finish."""

import time

import pytest
from gem_server.durability import recovery

from tests.figures import Figures
from tests.hosts.cluster import SERVER_ADDRESS, Cluster
from tests.hosts.run import Watch, last_words
from tests.hosts.test_partition import FINISH

SECONDARY = "10.77.0.13"
MEANWHILE = 2000  # commits
SERVE = ("gemps", "serve", "--bind", "0.0.0.0:50051", "--insecure", "--exit-when-finished", "--data-dir", "state")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_worker_cut_off_from_one_server_waits_alone_and_resumes(hosts: Cluster, figures: Figures) -> None:
    primary = hosts.start("s", *SERVE, "--shard", "0/2", "--min-workers", "2")
    secondary = hosts.start("w3", *SERVE, "--shard", "1/2", "--primary", SERVER_ADDRESS)
    primary.wait_for("serving on")
    watch = Watch(hosts)
    workers = {host: hosts.start(host, "gemps", "work", SERVER_ADDRESS) for host in ("w1", "w2")}
    watch.wait_until_each_commits(["w1", "w2"], 50)

    drop = ("--destination", SECONDARY, "--jump", "DROP")
    hosts.run("w1", "iptables", "--append", "OUTPUT", *drop)
    watch.wait_until_each_commits(["w2"], 50)  # by now what was on its way has arrived
    before, began = watch.commits(), time.monotonic()
    watch.wait_until_each_commits(["w2"], MEANWHILE)
    during = watch.commits()
    hosts.run("w1", "iptables", "--delete", "OUTPUT", *drop)
    joined_at = time.monotonic()
    watch.wait_until_each_commits(["w1"], 50)
    back = time.monotonic() - joined_at
    figures(
        f"a worker that cannot reach one of two servers for {joined_at - began:.0f} s",
        f"the other made {MEANWHILE} commits meanwhile; it had 50 more {back:.0f} s after both were in reach",
    )
    assert during["w1"] == before["w1"]

    hosts.run("s", "python", "-c", FINISH)
    assert [program.wait() for program in (*workers.values(), primary, secondary, watch.program)] == [0] * 5
    said = {host: int(last_words(worker)["steps"]) for host, worker in workers.items()}
    for host in ("s", "w3"):
        found = recovery.recover(hosts.folder(host) / "state")
        assert found is not None
        assert found.whole.state["commits"] == sum(said.values()) == found.whole.clock - 1
        ledger = {one["name"].split("-")[0]: one["commits"] for one in found.whole.state["workers"]}
        assert ledger == said
