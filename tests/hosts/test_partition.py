"""Hosts are unplugged while a run goes on: the others train on, who was cut off resumes, and no commit counts twice."""

import time

import pytest

from tests.figures import Figures
from tests.hosts.cluster import SERVER_ADDRESS, Cluster, Program
from tests.hosts.run import Watch, last_words

WORKERS = ["w1", "w2", "w3"]
SECONDS = 30.0  # longer than the 20 s after which a connection with unanswered data is given up
LOST, BACK = "connection-lost", "connection-back"
FINISH = (
    "from gem_worker import Observer\n"
    f"with Observer('{SERVER_ADDRESS}', wait=60) as observer:\n"
    "    observer.control('finish', 'the test has seen enough')\n"
)


def begin(hosts: Cluster) -> tuple[Program, dict[str, Program], Watch]:
    """A run without a budget, with three workers that train."""
    serve = ("--bind", "0.0.0.0:50051", "--insecure", "--min-workers", "3", "--exit-when-finished")
    server = hosts.start("s", "gemps", "serve", *serve)
    server.wait_for("serving on")
    watch = Watch(hosts)
    workers = {host: hosts.start(host, "gemps", "work", SERVER_ADDRESS) for host in WORKERS}
    watch.wait_until_each_commits(WORKERS, 50)
    return server, workers, watch


def end(hosts: Cluster, server: Program, workers: dict[str, Program], watch: Watch) -> None:
    """Everybody trains; then the run is finished, all exit with 0, and what they counted agrees."""
    watch.wait_until_each_commits(WORKERS, 50)
    hosts.run("s", "python", "-c", FINISH)
    assert [program.wait() for program in (*workers.values(), server, watch.program)] == [0] * 5
    said = {host: last_words(worker) for host, worker in workers.items()}
    assert {host: words["steps"] for host, words in said.items()} == watch.commits()
    assert [words["dropped"] for words in said.values()] == [0, 0, 0]
    assert [worker["sessions"] for worker in watch.workers().values()] == [1, 1, 1]


@pytest.mark.timeout(900)
def test_a_worker_that_is_cut_off_resumes_and_the_others_do_not_wait_for_it(hosts: Cluster, figures: Figures) -> None:
    server, workers, watch = begin(hosts)

    hosts.cut("w1")  # for a moment, of which a worker tells only if its lane is silent for 3 s
    hosts.join("w1")
    watch.wait_until_each_commits(["w1"], 50)

    hosts.cut("w1")
    watch.wait_until_each_commits(["w2"], 50)  # by now what was on its way has arrived
    before = watch.commits()
    time.sleep(SECONDS)
    during = watch.commits()
    hosts.join("w1")
    joined_at = time.monotonic()
    watch.wait_until_each_commits(["w1"], 1)
    back = time.monotonic() - joined_at
    others = [during[host] - before[host] for host in ("w2", "w3")]
    figures(
        f"a worker unplugged for {SECONDS:.0f} s",
        f"the others made {others[0]} and {others[1]} commits meanwhile; it "
        f"trained again {back:.0f} s after it was plugged in",
    )

    assert during["w1"] == before["w1"]
    assert min(others) > 100
    assert [LOST in workers[host].text for host in WORKERS] == [True, False, False]
    end(hosts, server, workers, watch)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_everybody_resumes_when_the_servers_host_was_cut_off(hosts: Cluster, figures: Figures) -> None:
    server, workers, watch = begin(hosts)

    hosts.cut("s")
    time.sleep(SECONDS)
    hosts.join("s")
    joined_at = time.monotonic()
    for worker in workers.values():
        worker.wait_for(BACK)
    back = time.monotonic() - joined_at
    figures(f"the server unplugged for {SECONDS:.0f} s", f"all workers were back {back:.0f} s after it was plugged in")

    end(hosts, server, workers, watch)
