"""A firewall closes the lane's port in mid-run: the worker is on gRPC within 5 s, and says so once."""

import re
import time

import pytest

from tests.figures import Figures
from tests.hosts.cluster import SERVER_ADDRESS, Cluster
from tests.hosts.run import Watch
from tests.hosts.test_partition import begin, end

# Between two reports of the status, and until the lane's own last commits are counted.
MARGIN_SECONDS = 1.5
NEVER_SECONDS = 60.0


@pytest.mark.timeout(900)
def test_a_worker_whose_lane_is_closed_in_mid_run_commits_over_grpc(hosts: Cluster, figures: Figures) -> None:
    server, workers, watch = begin(hosts)
    assert transports(watch) == {"w1": "LANE", "w2": "LANE", "w3": "LANE"}
    hosts.run("w1", *close_lane("OUTPUT"))
    closed_at = time.monotonic()
    before = watch.commits()["w1"]
    longest = longest_pause(watch, before, closed_at)
    figures("a lane that is closed in mid-run", f"commits over gRPC after {longest:.1f} s without one")
    assert longest < 5 + MARGIN_SECONDS
    assert transports(watch) == {"w1": "GRPC", "w2": "LANE", "w3": "LANE"}
    assert len(re.findall(r"the lane, the server's port \d+, cannot be used", workers["w1"].text)) == 1
    end(hosts, server, workers, watch)


@pytest.mark.timeout(900)
def test_a_worker_that_finds_the_lane_closed_commits_over_grpc(hosts: Cluster) -> None:
    hosts.run("w1", *close_lane("OUTPUT"))
    server, workers, watch = begin(hosts)
    assert transports(watch)["w1"] == "GRPC"
    assert "cannot be used" in workers["w1"].text
    end(hosts, server, workers, watch)


def close_lane(chain: str) -> tuple[str, ...]:
    """The command that drops what goes to the lane's port, without an answer."""
    port = str(int(SERVER_ADDRESS.rpartition(":")[2]) + 1)
    return ("iptables", "-A", chain, "-p", "tcp", "--dport", port, "-j", "DROP")


def transports(watch: Watch) -> dict[str, str]:
    return {host: str(one["transport"]).removeprefix("TRANSPORT_KIND_") for host, one in watch.workers().items()}


def longest_pause(watch: Watch, commits: int, since: float) -> float:
    """The longest time without a commit of w1, until it commits over gRPC."""
    longest, last = 0.0, since
    while transports(watch)["w1"] != "GRPC":
        assert time.monotonic() - since < NEVER_SECONDS, "w1 never committed over gRPC"
        if (now := watch.commits()["w1"]) != commits:
            commits, last = now, time.monotonic()
        time.sleep(0.1)
        longest = max(longest, time.monotonic() - last)
    return longest
