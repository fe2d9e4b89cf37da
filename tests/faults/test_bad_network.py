"""A network that delays, loses packets and parts: no commit counts twice, nobody hangs, both sides notice, all resume.

Hosts are network namespaces, as in tests/hosts.
"""

import json
import time
from typing import Any

import pytest

from tests.containers.history import history
from tests.figures import Figures
from tests.forms import FULL
from tests.hosts.cluster import SERVER_ADDRESS, Cluster, Program
from tests.hosts.run import Watch
from tests.hosts.test_partition import FINISH

WORKERS = {"w1": "10.77.0.111", "w2": "10.77.0.112", "w3": "10.77.0.113"}
DELAY, LOSS = 0.020, 0.05  # one way, seconds; of the packets, each way
NOTICED_WITHIN = 120.0
DEAF_SECONDS = 2.0
DATA = ("--protocol", "tcp", "--match", "length", "--length", "129:")  # packets that carry more than a few bytes
# In full all settings are the defaults. In the short form a worker asks sooner whether a silent server is there.
SECONDS, SOONER = (60.0, ()) if FULL else (30.0, ("env", "GEMPS_CLIENT_HEARTBEAT_INTERVAL=5"))
# Until a connection that answers no ping is given up (60 s + 20 s), and until a session then expires.
EXPIRES_WITHIN, BUSY = 80.0 + 120.0, 15.0


class Logged:
    """A worker that writes down every step."""

    def __init__(self, hosts: Cluster, host: str) -> None:
        work = ("gemps", "work", SERVER_ADDRESS, f"--worker-name={host}", "--log-format=json", "--log-interval=0")
        self.host = host
        self.program: Program = hosts.start(host, *SOONER, *work)

    def lines(self) -> list[dict[str, Any]]:
        whole_lines = self.program.text.rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole_lines if line.startswith("{")]

    def events(self, kind: str) -> int:
        return sum(1 for line in self.lines() if line["event"] == kind)


class Partition:
    """A host is unplugged from here on, until `join`.

    A worker's host gets only acknowledgements for a moment before: its last commit arrives, and the reply does not.
    """

    def __init__(self, hosts: Cluster, host: str, workers: list[Logged], watch: Watch) -> None:
        self._hosts = hosts
        self._host = host
        self._workers = workers
        self._watch = watch
        self._lost_before = {worker: worker.events("connection-lost") for worker in workers}
        self._began = time.monotonic()
        if host in WORKERS:
            hosts.run(host, "iptables", "--insert", "INPUT", *DATA, "--jump", "DROP")
            time.sleep(DEAF_SECONDS)
        hosts.cut(host)
        if host in WORKERS:
            hosts.run(host, "iptables", "--delete", "INPUT", *DATA, "--jump", "DROP")

    def noticed(self) -> list[float]:
        """Seconds until each of the workers knew; it says that it lost the connection."""
        found: dict[Logged, float] = {}

        def all_know() -> bool:
            for worker in self._workers:
                if worker not in found and worker.events("connection-lost") > self._lost_before[worker]:
                    found[worker] = time.monotonic() - self._began
            return len(found) == len(self._workers)

        self._workers[0].program.wait_until(all_know, "connection lost")
        return sorted(found.values())

    def join(self) -> float:
        """Plugs it in again when the time is over; seconds until all of the workers have commits again."""
        time.sleep(max(0.0, self._began + SECONDS - time.monotonic()))
        self._hosts.join(self._host)
        joined = time.monotonic()
        self._watch.wait_until_each_commits([worker.host for worker in self._workers], 1)
        return time.monotonic() - joined


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_partitions_of_a_network_that_delays_and_loses_packets(hosts: Cluster, figures: Figures) -> None:
    serve = ("--bind=0.0.0.0:50051", "--insecure", "--min-workers=3", "--exit-when-finished", "--data-dir=state")
    server = hosts.start("s", "gemps", "serve", *serve, "--durability=commit")
    server.wait_for("serving on")
    watch = Watch(hosts)
    for host, address in WORKERS.items():
        hosts.delay(host, address, DELAY, LOSS)
    workers = [Logged(hosts, host) for host in WORKERS]
    watch.wait_until_each_commits([*WORKERS], 10)

    partition = Partition(hosts, "w1", workers[:1], watch)
    before = watch.commits()
    (worker_noticed,) = partition.noticed()
    silent = {host: float(worker["seconds_since_last_call"]) for host, worker in watch.workers().items()}
    others = [watch.commits()[host] - before[host] for host in ("w2", "w3")]
    back = [partition.join()]

    partition = Partition(hosts, "s", workers, watch)
    noticed = [worker_noticed, *partition.noticed()]
    back.append(partition.join())

    expired = "in the full form only"
    if FULL:
        cut = time.monotonic()
        partition = Partition(hosts, "w3", workers[2:], watch)
        server.wait_until(lambda: "worker w3 expired" in server.text, "w3 expired", EXPIRES_WITHIN + BUSY)
        expiry = time.monotonic() - cut
        back.append(partition.join())
        expired = f"{expiry:.0f} s after it was cut off"
        assert expiry <= EXPIRES_WITHIN + BUSY

    hosts.run("s", "python", "-c", FINISH)
    codes = [program.wait() for program in (*(worker.program for worker in workers), server, watch.program)]
    state = json.loads((hosts.folder("s") / "state/latest/state.json").read_text(encoding="utf-8"))
    ledger = {worker["name"]: worker["commits"] for worker in state["workers"]}
    found = history({worker.host: worker.lines() for worker in workers}, server.text, state["clock"])
    repeats = sum(1 for worker in workers for line in worker.lines() if line.get("duplicate"))
    figures(
        f"partitions of {SECONDS:.0f} s, 20 ms away, 5 % loss",
        f"{state['commits']} commits, {len(found.twice)} twice, {found.lost} lost, {repeats} told again as duplicates; "
        f"a worker cut off knew after {worker_noticed:.0f} s, the server had it as silent for {silent['w1']:.0f} s "
        f"then, the others made {others} commits; with the server cut off they knew after "
        f"{[round(one) for one in noticed[1:]]} s; all trained "
        f"{[round(one, 1) for one in back]} s after it was back; a session that stays away expires: {expired}",
    )
    assert codes == [0] * 5
    assert found.surviving == ledger
    assert (found.twice, found.lost, found.incarnations) == ([], 0, 1)
    for worker in workers:
        steps = [line["sequence"] for line in worker.lines() if "clock" in line]
        assert steps == list(range(1, len(steps) + 1))
    assert repeats >= 1
    assert max(noticed) <= NOTICED_WITHIN
    # The server's side of it: what its status shows grows from the cut on, whatever becomes of the dead connection.
    assert silent["w1"] > worker_noticed - 10
    assert max(silent["w2"], silent["w3"]) < silent["w1"]
    assert min(others) > 0
