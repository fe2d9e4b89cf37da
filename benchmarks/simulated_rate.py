"""Commits/s of `gemps simulate --network-rate` and of real workers behind a link of that rate (`make bench-simulated`).

Two network namespaces, joined by a link that `tc tbf` limits in each direction, hold a real server and the client
library's workers, one thread each, which sleep for the gradient times that the simulator draws. Needs root, `ip` and
`tc`. Fails with exit code 1 when a simulated rate is more than 15 % off. It sets no `--service-time`, so links must be
slow enough for the server's processor time not to matter.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gem_simulator import SimulationSettings, simulate
from gem_simulator.durations import Durations
from gem_worker.client import Client
from gem_worker.wire_names import WIRE_TYPES
from served import serve

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat

TOLERANCE = 0.15
WARM_UP = 5.0
# Of a full Ethernet frame, which tbf counts, the share that is TCP's payload.
GOODPUT = 1448 / 1514
SERVER, WORKERS, SUBNET = "10.99.0.1", "10.99.0.2", "10.99.0.0/24"


@dataclass(frozen=True)
class Case:
    """`link`: Mbit/s. `compute`: seconds of a gradient, as `--compute-time`."""

    title: str
    model: tuple[str, str]
    link: float
    compute: str
    wire: str = "float32"
    staging_buffers: int = 0

    def settings(self, workers: int, seconds: float) -> SimulationSettings:
        """Settings of its simulation; the batch is small because only time matters."""
        task, model = self.model
        return SimulationSettings.model_validate(
            {"task": task, "model": model, "batch_size": 1, "workers": workers, "seconds": seconds}
            | {"compute_time": self.compute, "network_rate": self.link * 1e6 / 8 * GOODPUT}
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
)


@dataclass(frozen=True)
class Rates:
    """Commits/s, and their mean staleness."""

    commits: float
    staleness: float


@contextmanager
def link(megabits: float) -> Iterator[tuple[list[str], list[str]]]:
    """Commands that run another within the server's network, and within the workers'."""
    names = [f"gemps-{os.getpid()}-{side}" for side in ("server", "workers")]
    devices = [f"gemps{os.getpid() % 10**6}{side}" for side in "sw"]
    within = [["ip", "netns", "exec", name] for name in names]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
        for name, device, address, inside in zip(names, devices, (SERVER, WORKERS), within, strict=True):
            _run("ip", "link", "set", device, "netns", name)
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
            _run(*inside, "ip", "link", "set", device, "up")
            # Linux's default; others may be this machine's.
            _run(*inside, "ip", "route", "change", SUBNET, "dev", device, "congctl", "cubic")
            limit = f"tbf rate {megabits}mbit burst 4kb limit 128kb"  # a large burst exceeds the rate
            _run(*inside, "tc", "qdisc", "add", "dev", device, "root", *limit.split())
        yield within[0], within[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def real(case: Case, parameters: int, workers: int, seconds: float) -> Rates:
    """Run server and workers."""
    with tempfile.TemporaryDirectory(prefix="gemps-bench-") as name, link(case.link) as (at_server, at_workers):
        flags = ["--insecure", f"--min-workers={workers}", f"--staging-buffers={case.staging_buffers}"]
        with serve(Path(name), *flags, host=SERVER, within=at_server) as served:
            job = json.dumps([asdict(case), served.address, parameters, workers, seconds])
            command = [*at_workers, sys.executable, __file__, "--job", job]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return Rates(**json.loads(done.stdout))


def work(case: Case, address: str, parameters: int, workers: int, seconds: float) -> Rates:
    """Commit zeros from one thread for each worker."""
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    wire = WIRE_TYPES[case.settings(workers, seconds).delta_wire]
    size = PayloadFormat(layout, wire).byte_count
    barrier = threading.Barrier(workers)
    staleness: list[int] = []
    failed: list[BaseException] = []

    def loop(rank: int) -> None:
        held, delta = memoryview(bytearray(size)), memoryview(bytes(size))
        with Client(
            address,
            worker_name=f"worker-{rank}",
            layout=layout,
            delta_wire_types=(wire,),
            parameter_wire_types=(wire,),
        ) as client:
            if not client.join().has_parameters:
                client.initialize(memoryview(bytes(4 * parameters)))
            client.pull(held)
            barrier.wait()
            began = time.monotonic()
            for gradient in Durations(case.compute).of(0, rank):
                time.sleep(gradient)
                verdict = client.commit(delta, held).verdict
                elapsed = time.monotonic() - began
                if elapsed >= seconds:
                    break
                if elapsed >= WARM_UP and verdict is not None:
                    staleness.append(verdict.staleness)
            if client.transport != "lane":
                raise AssertionError(f"commits took {client.transport}, not the lane")

    def watched(rank: int) -> None:
        try:
            loop(rank)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=watched, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return Rates(len(staleness) / (seconds - WARM_UP), sum(staleness) / len(staleness))


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
        result = simulate(case.settings(arguments.workers, arguments.seconds))
        counted = result.history.column("at") > WARM_UP
        model = Rates(
            float(counted.sum()) / (arguments.seconds - WARM_UP),
            float(result.history.column("staleness")[counted].mean()),
        )
        found = real(case, result.layout.parameter_count, arguments.workers, arguments.seconds)
        ratio = model.commits / found.commits
        wrong += abs(ratio - 1) > TOLERANCE
        print(
            f"| {case.title} | {case.link:g} | {case.compute} | {found.commits:.2f} | {model.commits:.2f} | "
            f"{ratio:.2f} | {found.staleness:.1f} | {model.staleness:.1f} |",
            flush=True,
        )
    sys.exit(f"{wrong} simulated rates are more than {TOLERANCE:.0%} off" if wrong else 0)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
