"""Commits/s of several shards, as multiples of one server's (all but the first part need root).

- one-machine: 2 shards of 61 million parameters, AlexNet's size; all processes share the cores.
- core-each: every server has 12 % of a core (`limited_cores.py`), so that the workers' processor time is not the
  limit; 1, 2 and 4 shards of 16 million parameters.
- link-each, if asked for: every server has a link of 200 Mbit/s (`limited_links.py`). Two cores are too few for it.

Workers are client processes that compute nothing. All servers live at once and take turns, so that a ratio is of the
same minute; medians of the rounds. Exit code 1: a ratio is below its goal.
"""

import argparse
import ctypes
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from gem_worker.client import Client

from benchmarks.harness.processes import processor_seconds
from benchmarks.limited_cores import limited_core
from benchmarks.limited_links import limited_links
from benchmarks.served import LOOPBACK, serve_shards
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

# Of Linux's sched.h.
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Case:
    """`goals`: numbers of shards, and at least how many times one server's commits/s; `link`: Mbit/s."""

    parameters: int
    workers: int
    seconds: float
    goals: dict[int, float]
    share: float | None = None
    link: float | None = None


CASES = {
    "one-machine": Case(61_000_000, 2, 8.0, {2: 0.9}),
    "core-each": Case(16_000_000, 8, 30.0, {2: 1.8, 4: 3.4}, share=0.12),
    "link-each": Case(4_000_000, 8, 10.0, {2: 1.8, 4: 3.4}, link=200.0),
}


@dataclass(frozen=True)
class Turn:
    """Commits/s, and busy cores."""

    rate: float
    servers: float
    workers: float


def work(pipe: Connection, addresses: list[str], parameters: int, rank: int, namespace: str | None) -> None:
    """Be a worker of each server; for each (server, seconds) received, commit and answer with (commits, seconds)."""
    if namespace is not None:
        enter(namespace)
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    into = memoryview(bytearray(4 * parameters))
    delta = memoryview(np.random.default_rng(0).normal(scale=1e-6, size=parameters).astype(np.float32)).cast("B")
    with ExitStack() as stack:
        clients = []
        for address in addresses:
            client = stack.enter_context(Client(address, worker_name=f"worker-{rank}", layout=layout))
            if not client.join().has_parameters:
                client.initialize(into)
            client.pull(into)
            client.commit(delta, into)  # opens the stream
            if client.transport != "lane":
                raise AssertionError(f"commits take {client.transport}")
            clients.append(client)
        pipe.send(None)
        while (job := pipe.recv()) is not None:
            index, seconds = job
            commits, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < seconds:
                clients[index].commit(delta, into)
                commits += 1
            pipe.send((commits, elapsed))


def enter(namespace: str) -> None:
    """Move this thread, and those that it will start, to a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


class Crew:
    """The worker processes of a case, in this network namespace."""

    def __init__(self, addresses: list[str], case: Case, namespace: str | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(case.workers):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=work, args=(theirs, addresses, case.parameters, rank, namespace), daemon=True
            )
            process.start()
            theirs.close()  # a worker that fails then ends `recv`
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def rate(self, index: int, seconds: float) -> float:
        """Commits/s with a server."""
        for pipe in self._pipes:
            pipe.send((index, seconds))
        commits, elapsed = zip(*(pipe.recv() for pipe in self._pipes), strict=True)
        return sum(commits) / max(elapsed)

    def end(self) -> None:
        """Let them leave."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


@contextmanager
def started(case: Case, rule: str) -> Iterator[tuple[dict[int, list[int]], Crew]]:
    """Servers, their process ids by the number of shards, and the workers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-bench-")))
        addresses, pids = [], {}
        counts = (1, *case.goals)
        places, namespace = [LOOPBACK] * sum(counts), None
        if case.link is not None:
            places, at_workers = stack.enter_context(limited_links(case.link, sum(counts)))
            namespace = at_workers[-1]
        for count in counts:
            own = folder / f"{count}"
            own.mkdir()
            here, places = places[:count], places[count:]
            servers = stack.enter_context(serve_shards(own, here, f"--rule={rule}", "--insecure"))
            addresses.append(servers[0].address)
            pids[count] = [one.process.pid for one in servers]
        crew = Crew(addresses, case, namespace)
        stack.callback(crew.end)
        if case.share is not None:
            for pid in (pid for group in pids.values() for pid in group):
                stack.enter_context(limited_core(pid, case.share))
        yield pids, crew


def measure(case: Case, rule: str, rounds: int) -> dict[int, list[Turn]]:
    """Each number of shards in turn, in each round."""
    found: dict[int, list[Turn]] = {}
    with started(case, rule) as (pids, crew):
        for _ in range(rounds):
            for index, (count, servers) in enumerate(pids.items()):
                before = processor_seconds(servers), processor_seconds(crew.pids)
                began = time.perf_counter()
                rate = crew.rate(index, case.seconds)
                elapsed = time.perf_counter() - began
                busy = processor_seconds(servers) - before[0], processor_seconds(crew.pids) - before[1]
                found.setdefault(count, []).append(Turn(rate, busy[0] / elapsed, busy[1] / elapsed))
    return found


def show(name: str, case: Case, found: dict[int, list[Turn]]) -> int:
    """Print a row a number of shards; return how many ratios are below their goals."""
    failed = 0
    for count, turns in found.items():
        rate, servers, workers = (
            statistics.median(getattr(one, field) for one in turns) for field in ("rate", "servers", "workers")
        )
        text = (
            f"{name}: {case.parameters:,} parameters, {case.workers} workers, shards: {count}: {rate:.2f} commits/s; "
        )
        text += f"busy cores: servers {servers:.2f}, workers {workers:.2f}"
        if count in case.goals:
            ratios = [one.rate / alone.rate for one, alone in zip(turns, found[1], strict=True)]
            ratio, goal = statistics.median(ratios), case.goals[count]
            failed += ratio < goal
            text += f"; ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), goal at least {goal}"
        print(text, flush=True)
    return failed


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["one-machine", "core-each"], choices=list(CASES))
    parser.add_argument("--rule", default="gem")
    parser.add_argument("--parameters", type=int, help="another size of the model")
    parser.add_argument("--seconds", type=float, help="another length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.cases:
        case = CASES[name]
        case = replace(
            case, parameters=arguments.parameters or case.parameters, seconds=arguments.seconds or case.seconds
        )
        failed += show(name, case, measure(case, arguments.rule, arguments.rounds))
    sys.exit(f"{failed} ratios are below their goals" if failed else 0)


if __name__ == "__main__":
    main()
