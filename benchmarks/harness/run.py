"""One run: a contender's server and workers from their start to their end, and what was seen of them."""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import processes
from benchmarks.harness.desk import Line
from benchmarks.harness.environments import REPOSITORY, interpreter
from benchmarks.peers.interface import Case, Contender, Home

# Between the harness' word and the common start: enough for every process to hear it.
HEAD_START = 0.3
SETUP_SECONDS = 300.0  # to start, join and warm up: 32 workers of the slowest take minutes at the largest size
STEP_SECONDS = 300.0  # for the last step to end


class RunFailedError(Exception):
    """A run that came to nothing; the message is for the report."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker reported: the seconds of each step, the first of which began at `began`."""

    took: list[float]
    began: float

    def commits_between(self, start: float, end: float) -> float:
        """Steps in that time; one that was under way at an end counts by the part of its time that lay within."""
        moment = self.began
        count = 0.0
        for took in self.took:
            within = min(end, moment + took) - max(start, moment)
            count += max(0.0, within) / took
            moment += took
        return count


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it goes into the JSON. Memory in bytes, times in seconds; `error` says why there are no figures."""

    contender: str
    parameters: int
    workers: int
    round: int
    seconds: float
    commits: list[float] = field(default_factory=list)  # of each worker within the window
    took: list[float] = field(default_factory=list)  # quantiles of all steps: 0, 1, ... 100 %
    server_cpu: float = 0.0  # within the window
    workers_cpu: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)  # a commit's, as the contender itself has timed them
    server_anonymous: int = 0  # peak
    server_shared: int = 0  # peak of what the server maps; of several processes: each page once, at the end
    delta_regions: int = 0  # of it, where workers' gradients lie: memory that a worker of any contender has
    all_shared: int = 0  # shared memory of server and workers at the end, each page once
    server_anonymous_at_end: int = 0
    workers_anonymous: int = 0  # at the end, of all; what they inherited by forking once
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)


class Nurseries:
    """The forking processes, one an interpreter, made when first needed."""

    def __init__(self) -> None:
        self._started: dict[Home, subprocess.Popen[str]] = {}

    def fork(self, home: Home, order: dict[str, Any]) -> int:
        """Start a process; returns its id."""
        nursery = self._started.get(home)
        if nursery is None or nursery.poll() is not None:
            nursery = self._started[home] = subprocess.Popen(
                [str(interpreter(home)), "-m", "benchmarks.harness.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
                cwd=REPOSITORY,
            )
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(json.dumps(order) + "\n")
        nursery.stdin.flush()
        answer = nursery.stdout.readline()
        if not answer:
            raise RunFailedError(f"{interpreter(home)} could not load {order['preload']}: see its message above")
        return int(json.loads(answer)["pid"])

    def close(self) -> None:
        """End them."""
        for nursery in self._started.values():
            assert nursery.stdin is not None
            nursery.stdin.close()
            nursery.wait()
        self._started.clear()


def run_once(contender: Contender, case: Case, seconds: float, round_: int, nurseries: Nurseries) -> Run:
    """Run it for so many seconds. Never raises because of what the contender did: Run.error has it."""
    try:
        with tempfile.TemporaryDirectory(prefix="gemps-bench-") as folder:
            return _Runner(contender, case, seconds, round_, nurseries, Path(folder)).run()
    except RunFailedError as failure:
        return Run(contender.name, case.parameters, case.workers, round_, seconds, error=str(failure))


class _Runner:
    def __init__(
        self, contender: Contender, case: Case, seconds: float, round_: int, nurseries: Nurseries, folder: Path
    ) -> None:
        self._contender = contender
        self._case = case
        self._seconds = seconds
        self._round = round_
        self._nurseries = nurseries
        self._folder = folder
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / "desk"))
        self._door.listen(case.workers + 1)
        self._server: subprocess.Popen[bytes] | None = None
        self._pids: list[int] = []

    def run(self) -> Run:
        """Start, warm up, time, look, end."""
        try:
            return self._run()
        except (EOFError, TimeoutError, OSError) as error:
            raise RunFailedError(f"{error}{self._last_words()}") from error
        finally:
            self._end_all()
            self._door.close()

    def _run(self) -> Run:
        case = self._case
        address, server_pid, server = self._start_server()
        with _sampled(server_pid) as sampler:
            for rank in range(case.workers):
                self._fork(rank, address)
            lines = self._meet(case.workers)
            workers = self._pids[-case.workers :]
            for line in lines:
                self._expect(line, "warm", SETUP_SECONDS)
            start = time.monotonic() + HEAD_START
            end = start + self._seconds
            for line in lines:
                line.say(window=[start, end])
            time.sleep(max(0.0, start - time.monotonic()))
            before = self._cpu(server_pid, workers)
            time.sleep(max(0.0, end - time.monotonic()))
            after = self._cpu(server_pid, workers)
            reports = [self._expect(line, "took", STEP_SECONDS) for line in lines]
            server_tree = [] if server_pid is None else processes.tree([server_pid])
            worker_tree = processes.tree(workers)
            all_shared = processes.shared_once([*server_tree, *worker_tree])
            delta_regions = sum(processes.shared_named(pid, "gemps-delta") for pid in server_tree)
            workers_anonymous = processes.anonymous_once(worker_tree)
            server_at_end, _ = processes.anonymous_and_shared(server_tree)
            server_shared = sampler.shared if sampler is not None else 0
            if len(server_tree) > 1:
                server_shared = min(server_shared, all_shared)
        for line in lines:
            line.say(end=True)
        parts = parts_of_a_commit([self._expect(line, "ended", SETUP_SECONDS) for line in lines])
        if server is not None:
            server.say(end=True)
            parts |= parts_of_a_commit([self._expect(server, "ended", SETUP_SECONDS)])
        found = [Worker(report["took"], report["began"]) for report in reports]
        commits = [worker.commits_between(start, end) for worker in found]
        if not sum(commits):
            raise RunFailedError(f"no worker came to make a step within {self._seconds:g} s: try more --seconds")
        return Run(
            self._contender.name,
            case.parameters,
            case.workers,
            self._round,
            self._seconds,
            commits=commits,
            took=quantiles([took for worker in found for took in worker.took]),
            server_cpu=after[0] - before[0],
            workers_cpu=after[1] - before[1],
            parts=parts,
            server_anonymous=sampler.anonymous if sampler is not None else 0,
            server_shared=server_shared,
            delta_regions=delta_regions,
            all_shared=all_shared,
            server_anonymous_at_end=server_at_end,
            workers_anonymous=workers_anonymous,
        )

    def _start_server(self) -> tuple[str, int | None, Line | None]:
        command = self._contender.command(self._case, self._folder)
        if command is None:
            order = json.dumps(self._order("server", 0, ""))
            server = self._start([str(interpreter(self._contender.home)), "-m", "benchmarks.harness.nursery", order])
            (line,) = self._meet(1)
            address = str(self._expect(line, "ready", SETUP_SECONDS)["ready"])
            return address, (server.pid if address else None), line
        server = self._start(command)
        ready = self._folder / "ready.json"
        limit = time.monotonic() + SETUP_SECONDS
        while not ready.exists():
            if server.poll() is not None or time.monotonic() > limit:
                raise RunFailedError(f"the server did not start{self._last_words()}")
            time.sleep(0.02)
        return str(json.loads(ready.read_text(encoding="utf-8"))["address"]), server.pid, None

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self._folder / "server.log").open("wb") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(), cwd=self._folder)
        return self._server

    def _fork(self, rank: int, address: str) -> None:
        self._pids.append(self._nurseries.fork(self._contender.home, self._order("worker", rank, address)))

    def _order(self, role: str, rank: int, address: str) -> dict[str, Any]:
        contender, case = self._contender, self._case
        return {
            "contender": contender.name,
            "preload": contender.preload,
            "parameters": case.parameters,
            "workers": case.workers,
            "role": role,
            "rank": rank,
            "address": address,
            "socket": str(self._folder / "desk"),
            "log": str(self._folder / f"{role}-{rank}.log"),
        }

    def _meet(self, count: int) -> list[Line]:
        """The lines of the next `count` processes, by rank."""
        found: dict[int, Line] = {}
        self._door.settimeout(1.0)
        limit = time.monotonic() + SETUP_SECONDS
        while len(found) < count:
            try:
                connection, _ = self._door.accept()
            except TimeoutError:
                ended = self._server is not None and self._server.poll() is not None
                if ended or not all(map(processes.alive, self._pids)) or time.monotonic() > limit:
                    raise RunFailedError(f"a process did not start{self._last_words()}") from None
                continue
            line = Line(connection)
            line.wait_at_most(SETUP_SECONDS)
            found[int(line.hear()["rank"])] = line
        return [found[rank] for rank in sorted(found)]

    def _expect(self, line: Line, what: str, seconds: float) -> dict[str, Any]:
        line.wait_at_most(seconds)
        try:
            message = line.hear()
        except TimeoutError:
            raise RunFailedError(
                f"nothing heard for {seconds:g} s (waiting for {what!r}){self._last_words()}"
            ) from None
        except EOFError:
            raise RunFailedError(f"a process ended before it was {what!r}{self._last_words()}") from None
        if what not in message:
            raise RunFailedError(f"{message.get('error', message)}{self._last_words()}")
        return message

    def _cpu(self, server: int | None, workers: list[int]) -> tuple[float, float]:
        return (0.0 if server is None else processes.processor_seconds([server])), processes.processor_seconds(workers)

    def _last_words(self) -> str:
        """The end of the logs."""
        words: list[str] = []
        for log in sorted(self._folder.glob("*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            telling = [line.strip() for line in lines if any(map(str.isalnum, line))]
            words.extend(f"{log.stem}: {line[:300]}" for line in telling[-2:])
        return "".join(f"\n    {line}" for line in words[:6])

    def _end_all(self) -> None:
        """Whoever is still there: after an error workers, and always a server that is a command of its own."""
        if self._server is not None:
            processes.end([self._server.pid])
            self._server.wait()
        processes.end(pid for pid in self._pids if processes.alive(pid))


@contextmanager
def _sampled(pid: int | None) -> Iterator[processes.Sampler | None]:
    if pid is None:
        yield None
        return
    sampler = processes.Sampler(pid)
    try:
        yield sampler
    finally:
        sampler.stop()


def parts_of_a_commit(last_words: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds a commit, by part, from what processes of one role say at their end; empty when they say nothing."""
    commits = sum(word["commits"] for word in last_words)
    total: dict[str, float] = {}
    for word in last_words:
        for part, seconds in word["parts"].items():
            total[part] = total.get(part, 0.0) + seconds
    return {part: seconds / commits for part, seconds in total.items()} if commits > 0 else {}


def quantiles(values: list[float]) -> list[float]:
    """0, 1, ... 100 % of `values`; empty for none."""
    if not values:
        return []
    ordered = sorted(values)
    return [ordered[round(percent / 100 * (len(ordered) - 1))] for percent in range(101)]


def _environment() -> dict[str, str]:
    """What processes of a run find in their environment: defaults, and nothing leaves the machine."""
    # Settings of gemps that somebody keeps in the environment would change what is measured.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GEMPS_")}
    folders = [str(REPOSITORY), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return inherited | {
        "PYTHONPATH": os.pathsep.join(folders),
        "OPENBLAS_NUM_THREADS": "1",  # nobody multiplies matrices here, and the nursery must not have threads
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
