"""Commits/s of `gemps simulate --network-rate` and of real workers behind links of that rate.

Real servers and the client library's workers, one thread each, which sleep for the gradient times that the simulator
draws. With shards, each worker commits to several servers at once, a part to each. Needs root, `ip` and `tc`. Fails
with exit code 1 when a simulated rate is more than 15 % off. It sets no `--service-time`, so links must be slow enough
for the server's processor time not to matter.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from gem_simulator import SimulationSettings, simulate
from gem_simulator.durations import Durations
from gem_worker.client import Client
from gem_worker.wire_names import WIRE_TYPES

from benchmarks.limited_links import GOODPUT, limited_links
from benchmarks.served import serve
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat

TOLERANCE = 0.15
WARM_UP = 5.0


@dataclass(frozen=True)
class Case:
    """`link`: Mbit/s. `compute`: seconds of a gradient, as `--compute-time`."""

    title: str
    model: tuple[str, str]
    link: float
    compute: str
    wire: str = "float32"
    staging_buffers: int = 0
    shards: int = 1

    def settings(self, workers: int, seconds: float) -> SimulationSettings:
        """Settings of its simulation; the batch is small because only time matters."""
        task, model = self.model
        return SimulationSettings.model_validate(
            {"task": task, "model": model, "batch_size": 1, "workers": workers, "seconds": seconds}
            | {"compute_time": self.compute, "network_rate": self.link * 1e6 / 8 * GOODPUT, "shards": self.shards}
            | {"delta_wire": self.wire, "parameter_wire": self.wire, "staging_buffers": self.staging_buffers}
        )


LARGE, SMALL = ("digits28", "cnn"), ("digits", "mlp")  # 655 kB; 19 kB, which needs no permission to upload
CASES = (
    Case("below saturation", LARGE, 50, "lognormal:2,0.2"),
    Case("at saturation", LARGE, 50, "lognormal:0.65,0.2"),
    Case("at saturation, exponential", LARGE, 50, "exponential:0.65"),
    Case("at saturation, 1 staging buffer", LARGE, 50, "lognormal:0.65,0.2", staging_buffers=1),
    Case("above saturation", LARGE, 50, "lognormal:0.2,0.2"),
    Case("at saturation, bfloat16", LARGE, 25, "lognormal:0.65,0.2", wire="bfloat16"),
    Case("at saturation, small payloads", SMALL, 2, "lognormal:0.5,0.2"),
    Case("at saturation, 2 shards", LARGE, 25, "lognormal:0.65,0.2", shards=2),
    Case("above saturation, 2 shards", LARGE, 25, "lognormal:0.2,0.2", shards=2),
)


@dataclass(frozen=True)
class Rates:
    """Commits/s, and their mean staleness."""

    commits: float
    staleness: float


def real(case: Case, parameters: int, workers: int, seconds: float) -> Rates:
    """Run servers and workers."""
    with ExitStack() as stack:
        places, at_workers = stack.enter_context(limited_links(case.link, case.shards))
        flags = ["--insecure", f"--min-workers={workers}", f"--set=limits.staging_buffers={case.staging_buffers}"]
        addresses = []
        for place in places:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-bench-")))
            served = stack.enter_context(serve(folder, *flags, place=place))
            addresses.append(served.address)
        job = json.dumps([asdict(case), addresses, parameters, workers, seconds])
        command = [*at_workers, sys.executable, "-m", "benchmarks.simulated_rate", "--job", job]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return Rates(**json.loads(done.stdout))


class Part:
    """A worker's session with one server; it commits zeros."""

    def __init__(self, case: Case, address: str, rank: int, parameters: int, stack: ExitStack) -> None:
        layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
        wires = (WIRE_TYPES[case.wire],)
        size = PayloadFormat(layout, wires[0]).byte_count
        self._held, self._delta = memoryview(bytearray(size)), memoryview(bytes(size))
        client = Client(
            address,
            worker_name=f"worker-{rank}",
            layout=layout,
            delta_wire_types=wires,
            parameter_wire_types=wires,
        )
        self._client = stack.enter_context(client)
        if not client.join().has_parameters:
            client.initialize(memoryview(bytes(4 * parameters)))
        client.pull(self._held)

    def commit(self) -> int:
        """Commit; returns the staleness."""
        verdict = self._client.commit(self._delta, self._held).verdict
        if verdict is None or self._client.transport != "lane":
            raise AssertionError(f"a commit took {self._client.transport}, or its reply broke off")
        return verdict.staleness


def work(case: Case, addresses: list[str], parameters: int, workers: int, seconds: float) -> Rates:
    """Commit from a thread for each worker, and one more for each of its parts."""
    barrier = threading.Barrier(workers)

    def loop(rank: int) -> list[int]:
        staleness = []
        with ExitStack() as stack, ThreadPoolExecutor(len(addresses)) as pool:
            size = parameters // len(addresses)
            parts = [Part(case, address, rank, size, stack) for address in addresses]
            barrier.wait()
            began = time.monotonic()
            for gradient in Durations(case.compute).of(0, rank):
                time.sleep(gradient)
                found = max(pool.map(Part.commit, parts))
                elapsed = time.monotonic() - began
                if elapsed >= seconds:
                    break
                if elapsed >= WARM_UP:
                    staleness.append(found)
        return staleness

    def guarded(rank: int) -> list[int]:
        try:
            return loop(rank)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(workers) as pool:
        found = [one for staleness in pool.map(guarded, range(workers)) for one in staleness]
    return Rates(len(found) / (seconds - WARM_UP), sum(found) / len(found))


def simulated(case: Case, workers: int, seconds: float) -> tuple[Rates, int]:
    """Simulate it; returns also the number of parameters."""
    result = simulate(case.settings(workers, seconds))
    counted = result.history.column("at") > WARM_UP
    rate = float(counted.sum()) / (seconds - WARM_UP)
    return Rates(rate, float(result.history.column("staleness")[counted].mean())), result.layout.parameter_count


def main() -> None:
    """Compare, print a table, and judge it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each case; the first 5 do not count")
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="numbers, from 0")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        case, *others = json.loads(arguments.job)
        print(json.dumps(asdict(work(Case(**case), *others))))
        return
    print("| case | link, Mbit/s | gradient | real commits/s | simulated | ratio | staleness: real | simulated |")
    print("|---|---|---|---|---|---|---|---|")
    wrong = 0
    for case in (CASES[number] for number in arguments.cases):
        model, parameters = simulated(case, arguments.workers, arguments.seconds)
        found = real(case, parameters, arguments.workers, arguments.seconds)
        ratio = model.commits / found.commits
        wrong += abs(ratio - 1) > TOLERANCE
        print(
            f"| {case.title} | {case.link:g} | {case.compute} | {found.commits:.2f} | {model.commits:.2f} | "
            f"{ratio:.2f} | {found.staleness:.1f} | {model.staleness:.1f} |",
            flush=True,
        )
    sys.exit(f"{wrong} simulated rates are more than {TOLERANCE:.0%} off" if wrong else 0)


if __name__ == "__main__":
    main()
