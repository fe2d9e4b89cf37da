"""What `--state-type bfloat16` saves and costs: `python -m benchmarks.state_type`.

- memory: growth of a server's anonymous memory from 1 to 9 workers that have committed, over 8 and the parameters.
- speed: commits/s of a server and four workers, threads of one process, over the lane; float32 deltas. Both servers
  live at once and take turns, so that a ratio is of the same minute; the median of the rounds.
- loss: digits, `simulate()` with lognormal durations, three seeds; final test loss and accuracy.
"""

import argparse
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from gem_simulator import SimulationSettings, simulate
from gem_worker.client import Client, Observer

from benchmarks.served import serve
from gem_core import ElementType, Layout, TensorKind, TensorSpec, create_rule

TYPES = ("float32", "bfloat16")
STEPS = {8: 200, 32: 100}
SEEDS = range(3)


class Worker:
    """A client that has pulled, and its delta."""

    def __init__(self, address: str, name: str, elements: int) -> None:
        layout = Layout((TensorSpec("weight", (elements,), ElementType.FLOAT32, TensorKind.PARAMETER),))
        self.client = Client(address, worker_name=name, layout=layout)
        self.into = memoryview(bytearray(4 * elements))
        self.delta = memoryview(np.random.default_rng(0).normal(0, 1e-4, elements).astype(np.float32)).cast("B")
        if not self.client.join().has_parameters:
            self.client.initialize(memoryview(bytes(4 * elements)))
        self.client.pull(self.into)

    def commit(self, count: int) -> None:
        """Commit the delta so often."""
        for _ in range(count):
            self.client.commit(self.delta, self.into)


def anonymous_bytes(address: str) -> int:
    """Of the server, as its status has it."""
    with Observer(address) as observer:
        return int(observer.get_status()["memory"]["anonymous_bytes"])


def memory(elements: int, workers: int) -> None:
    """Print bytes a parameter and worker."""
    for state_type in TYPES:
        with tempfile.TemporaryDirectory() as name, serve(Path(name), f"--state-type={state_type}") as served:
            seen, clients = [], []
            for number in range(workers + 1):
                clients.append(Worker(served.address, f"worker-{number}", elements))
                for one in clients if number in (0, workers) else ():
                    one.commit(2)
                if number in (0, workers):
                    seen.append(anonymous_bytes(served.address))
            for one in clients:
                one.client.close()
        grown = (seen[1] - seen[0]) / elements / workers
        print(f"{state_type}: {elements:,} parameters: {grown:.2f} bytes a parameter and worker", flush=True)


def speed(elements: int, workers: int, commits: int, rounds: int) -> None:
    """Print commits/s and their ratio."""
    with ExitStack() as stack:
        clients: dict[str, list[Worker]] = {}
        for state_type in TYPES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            served = stack.enter_context(serve(folder, f"--state-type={state_type}"))
            clients[state_type] = [Worker(served.address, f"worker-{number}", elements) for number in range(workers)]
            for one in clients[state_type]:
                stack.callback(one.client.close)
        taken: dict[str, list[float]] = {state_type: [] for state_type in TYPES}
        for _ in range(rounds):
            for state_type, those in clients.items():
                threads = [threading.Thread(target=one.commit, args=(commits,)) for one in those]
                began = time.perf_counter()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                taken[state_type].append(workers * commits / (time.perf_counter() - began))
    for state_type, rates in taken.items():
        print(f"{state_type}: {elements:,} parameters, {workers} workers: {statistics.median(rates):.1f} commits/s")
    ratio = statistics.median(b / a for a, b in zip(*taken.values(), strict=True))
    print(f"bfloat16 / float32: {ratio:.2f}", flush=True)


def loss() -> None:
    """Print the final test loss and accuracy of digits."""
    for workers, steps in STEPS.items():
        for state_type in TYPES:
            results = []
            for seed in SEEDS:
                settings = SimulationSettings(
                    workers=workers, steps=steps, seed=seed, model="mlp", compute_time="lognormal:1,0.5"
                )
                found = simulate(settings, rule=create_rule("gem", "none", state_type)).evaluations[-1]
                results.append(f"{found.test_loss:.4f} ({found.accuracy:.2%})")
            print(f"{state_type}: digits, {workers} workers, {steps} steps: {', '.join(results)}", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["memory", "speed", "loss"], choices=["memory", "speed", "loss"])
    chosen = parser.parse_args().what
    if "memory" in chosen:
        memory(4_000_000, 8)
    if "speed" in chosen:
        speed(1_000_000, 4, 20, 7)
    if "loss" in chosen:
        loss()


if __name__ == "__main__":
    main()
