"""`gemps launch spark` and `gemps.spark.train` on a real cluster, with the lines of docs/engines/spark.md."""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gem_cli.errors import USAGE

from tests.cli.processes import command_without, gemps, program_in_terminal
from tests.docs.blocks import blocks_of
from tests.engines.service import status_of
from tests.engines.spark_cluster import Cluster, Program, why_not
from tests.figures import Figures

PAGE = Path(__file__).resolve().parents[2] / "docs/engines/spark.md"
LINES = [block.text for block in blocks_of(PAGE) if block.runs]
(START,) = [text for text in LINES if "spark-class" in text]
(SUBMIT,) = [text for text in LINES if "spark-submit" in text]
(SETTINGS,) = [block.text for block in blocks_of(PAGE) if block.language == "toml"]
(LAUNCH,) = [f"cat > run.toml <<'END'\n{SETTINGS}END\n{text}" for text in LINES if "--data-dir" in text]
(ADD,) = [text for text in LINES if "--server" in text]
LOOK, EVALUATE = next(text for text in LINES if "gemps evaluate" in text).splitlines()
(SCRIPT,) = [block.text for block in blocks_of(PAGE) if block.language == "python"]
ENOUGH_COMMITS = 6000

Workers = dict[str, dict[str, Any]]


def skip_without_spark() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_spark()
    made = Cluster(tmp_path_factory.mktemp("spark"), START)
    try:
        made.nodes.wait_until(lambda: accepts(7077), "the master listens")
        yield made
    finally:
        made.close()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Run:
    """A program with a server."""

    def __init__(self, spark: Cluster, program: Program, address: str) -> None:
        self._spark, self.program, self._address = spark, program, address

    def workers(self) -> Workers:
        """By name; none while the server is away."""
        found = status_of(self._address).get("workers", ())
        return {one["name"]: one for one in found if one["state"] == "WORKER_STATE_TRAINING"}

    def finish(self) -> None:
        """End the run, once it has made enough commits to have learnt."""
        self.program.wait_until(
            lambda: int(status_of(self._address).get("commits", 0)) >= ENOUGH_COMMITS, f"{ENOUGH_COMMITS} commits"
        )
        assert gemps("finish", self._address).returncode == 0

    def wait_until_all_train(self, count: int, more: int = 300) -> Workers:
        """Return `count` workers once each has made `more` further commits."""
        before = self.workers()

        def train() -> bool:
            now = self.workers()
            moved = [name for name in now if commits(now, name) >= commits(before, name) + more]
            return len(now) == len(moved) == count

        self.program.wait_until(train, f"{count} workers commit {more} more than {before}")
        return self.workers()

    def kill_server(self) -> None:
        (server,) = self.program.processes("serve")
        server.kill()
        server.wait()

    def kill_worker(self, *words: str) -> None:
        """SIGKILL to one process of the cluster."""
        victim = self._spark.nodes.processes(*words)[-1]
        victim.kill()


def commits(workers: Workers, name: str) -> int:
    return int(workers.get(name, {}).get("commits", 0))


def ledger(folder: Path) -> dict[str, int]:
    """Commits by worker in the last checkpoint, which add up to those of the run."""
    state = json.loads((folder / "latest/state.json").read_text(encoding="utf-8"))
    found = {worker["name"]: int(worker["commits"]) for worker in state["workers"]}
    assert sum(found.values()) == state["commits"]
    return found


@pytest.mark.timeout(1200)
def test_killed_workers_and_servers_are_restarted_and_no_commit_is_applied_twice(
    spark: Cluster, figures: Figures
) -> None:
    run = Run(spark, spark.start(LAUNCH), "127.0.0.1:50051")
    first = run.wait_until_all_train(3)
    assert {worker["engine"] for worker in first.values()} == {"spark"}

    added = spark.start(ADD)
    assert first.keys() < run.wait_until_all_train(4).keys()
    assert "spark" in spark.run(LOOK.replace("gemps", "COLUMNS=200 gemps"))
    added.interrupt()
    assert run.wait_until_all_train(3).keys() == first.keys()
    assert "left: terminated" in (spark.folder / "run/logs/server.log").read_text(encoding="utf-8")

    run.kill_worker("work", "--task")
    assert run.wait_until_all_train(3).keys() == first.keys()
    run.kill_server()
    again = run.wait_until_all_train(3)
    assert {name: one.get("rank") for name, one in again.items()} == {
        name: one.get("rank") for name, one in first.items()
    }

    run.finish()
    run.program.wait()
    counted = ledger(spark.folder / "run")
    assert set(counted) >= set(first)
    (accuracy,) = re.findall(r"accuracy (\d\.\d+)", spark.run(EVALUATE))
    assert float(accuracy) >= 0.95
    figures("Spark: worker and server killed, a fourth worker for a while", f"{counted}, accuracy {accuracy}")


@pytest.mark.timeout(1200)
def test_shards_that_lose_one_are_restarted_together(spark: Cluster) -> None:
    shorter = LAUNCH.replace("commits = 60000", "commits = 6000").replace("--data-dir run", "--data-dir cut")
    launch = shorter.replace("--workers 3", "--workers 2 --shards 2")
    run = Run(spark, spark.start(launch), "127.0.0.1:50051")
    first = run.wait_until_all_train(2, more=100)
    (shard,) = run.program.processes("serve", "--shard=1/2")
    shard.kill()
    assert run.wait_until_all_train(2, more=100).keys() == first.keys()
    run.program.wait()
    counted = [sum(ledger(spark.folder / "cut" / part).values()) for part in ("", "shards/0")]
    assert counted == [6000, 6000]
    assert set(ledger(spark.folder / "cut")) == set(first)


@pytest.mark.timeout(1200)
def test_a_partition_is_a_workers_data_and_a_dead_task_runs_again(spark: Cluster, figures: Figures) -> None:
    (spark.folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    program = spark.start(SUBMIT)
    log = spark.folder / "state/logs/server.log"
    program.wait_until(lambda: log.exists() and "serving on" in log.read_text(encoding="utf-8"), "a server")
    run = Run(spark, program, re.findall(r"serving on ([\d.:]+)", log.read_text(encoding="utf-8"))[0])
    first = run.wait_until_all_train(3, more=100)
    run.kill_worker("pyspark.daemon")
    assert run.wait_until_all_train(3, more=100).keys() == first.keys()
    run.kill_server()
    text = program.wait()
    (steps,) = re.findall(r"steps=(\d+)", SCRIPT)
    assert ledger(spark.folder / "state") == dict.fromkeys(first, int(steps))
    (results,) = re.findall(r"^\[(\d+), (\d+), (\d+)\]$", text, re.MULTILINE)
    assert sum(int(applied) < int(steps) for applied in results) == 1  # by the second attempt alone
    (accuracy,) = re.findall(r"^accuracy (\d\.\d+)$", text, re.MULTILINE)
    assert float(accuracy) >= 0.95
    figures("Spark: a DataFrame of digits, worker and server killed", f"accuracy {accuracy}")


@pytest.fixture
def context() -> Iterator[Callable[..., Any]]:
    """Makes contexts in this process."""
    skip_without_spark()
    from pyspark import SparkConf, SparkContext

    made = []

    def make(**settings: str) -> Any:
        # Of a context before it some outlive it.
        usable = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1"}
        switches = {"spark.python.worker.reuse": "false", "spark.speculation": "false"}
        pairs = usable | switches | {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        made.append(SparkContext(conf=SparkConf().setAppName("test").setAll(list(pairs.items()))))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize(
    ("settings", "partitions", "said"),
    [
        ({"speculation": "true"}, 2, "set --conf spark.speculation=false"),
        ({"python_worker_reuse": "true"}, 2, "set --conf spark.python.worker.reuse=false"),
        ({}, 3, "3 workers, one per partition, must run at once, and 2 task slots are free"),
        ({}, 0, "no partition"),
    ],
)
def test_configurations_that_do_not_suit_are_refused(
    context: Callable[..., Any], settings: dict[str, str], partitions: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = context(**settings)
    from gem_launch.engines import spark

    monkeypatch.setattr(spark, "SLOTS_SECONDS", 0.0)
    data = made.parallelize(range(6), partitions) if partitions else made.emptyRDD()
    with pytest.raises(ValueError, match=re.escape(said)):
        spark.train(data, len)


def test_wrong_arguments_are_refused(context: Callable[..., Any]) -> None:
    made = context()
    from gemps.spark import train

    data = made.parallelize(range(2), 2)
    with pytest.raises(TypeError, match="the data is list"):
        train([1, 2], len)
    with pytest.raises(TypeError, match="leave out server=, or steps"):
        train(data, len, server="127.0.0.1:1", steps=3)
    with pytest.raises(TypeError, match="did you mean 'steps'"):
        train(data, len, step=3)
    with pytest.raises(TypeError, match="leave out server=, or shards"):
        train(data, len, server="127.0.0.1:1", shards=2)
    with pytest.raises(ValueError, match="shards=0: give a number"):
        train(data, len, shards=0)
    assert train(data, len) == [1, 1]


def test_a_dead_server_without_data_ends_the_job(context: Callable[..., Any]) -> None:
    made = context()
    from gemps import ServerProcessError
    from gemps.spark import train
    from psutil import STATUS_ZOMBIE, Process

    def kill_server(rows: list[int]) -> None:
        driver = Process(rows[0])
        living = [one for one in driver.children() if one.status() != STATUS_ZOMBIE]
        (server,) = [one for one in living if "serve" in one.cmdline()]
        server.kill()
        server.wait()
        driver.wait()  # never

    with pytest.raises(ServerProcessError, match="data_dir= lets it be restarted"):
        train(made.parallelize([os.getpid()], 1), kill_server)
    assert made.parallelize([1], 1).count() == 1


@pytest.mark.parametrize(
    ("code", "said"), [(3, "sys.exit(3)' ended with exit code 3"), (2, "workers [0] ended with exit code 2")]
)
@pytest.mark.engines
def test_a_command_that_fails_fails_the_launch(code: int, said: str) -> None:
    skip_without_spark()
    launch = ("launch", "spark", "--master", "local[1]", "--conf", "spark.driver.host=127.0.0.1", "--workers", "1")
    done = gemps(*launch, "--", "python", "-c", f"import sys; sys.exit({code})")
    assert done.returncode == 1
    assert said in done.stderr.rpartition("gemps: ")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--conf", "spark.cores.max"), "--conf spark.cores.max: write NAME=VALUE"),
        (("--server", "127.0.0.1:1", "--set", "steps=5"), "leave out --steps=5"),
        (("--server", "127.0.0.1:1", "--shards", "2"), "leave out --shards"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], said: str) -> None:
    done = gemps("launch", "spark", "--workers", "2", *arguments)
    assert (done.returncode, said in done.stderr) == (USAGE, True)


def test_without_pyspark_the_fix_is_named() -> None:
    _, text = program_in_terminal(command_without(["pyspark"], "launch", "spark", "--workers", "2"))
    assert 'launch spark needs pyspark, which is not installed: pip install ".[spark]"' in " ".join(text.split())
