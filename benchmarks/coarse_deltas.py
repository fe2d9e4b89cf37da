"""What int4 and sparse cost, as `--delta-wire` and `--parameter-wire`: `python -m benchmarks.coarse_deltas`.

- loss: digits and text, 4 workers, three seeds, equally many steps, round-robin, so that the runs of a seed differ by
  the wire type alone; final held-out loss, and its ratio to float32's. Goal: at most 1.02, mean of the seeds.
- cpu: processor milliseconds of a commit of 4.2 million parameters, of the worker and of the server. The types take
  turns.

A pair: the types of deltas and of parameters.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from gem_worker import ParameterServer
from gem_worker.settings import WireName
from torch import nn

from benchmarks.harness.processes import processor_seconds
from benchmarks.served import serve

Pair = tuple[WireName, WireName]
PLAIN: Pair = ("float32", "float32")
COARSE: tuple[Pair, ...] = (
    ("int4", "float32"),
    ("sparse", "float32"),
    ("int4", "int4"),
    ("sparse", "int4"),
    ("sparse", "sparse"),
)
TYPES: tuple[Pair, ...] = (PLAIN, ("bfloat16", "float32"), *COARSE)
SEEDS = range(3)
TASKS = {
    "digits": ("--task=digits", "--steps=1000"),
    "text": ("--task=text", "--steps=400", "--batch-size=16"),
}
GOAL = 1.02
ELEMENTS, COMMITS = 4_194_304, 10


def train(task: str, seed: int, wires: Pair) -> float:
    """The final held-out loss of a run."""
    with tempfile.TemporaryDirectory(prefix="gemps-coarse-") as folder:
        command = [sys.executable, "-m", "gem_cli", "train", "--workers=4", f"--seed={seed}", "--order=round-robin"]
        command += [f"--run-dir={folder}/run", "--sinks=none", *TASKS[task]]
        command += [f"--delta-wire={wires[0]}", f"--parameter-wire={wires[1]}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        summary: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))
        return float(summary["test_loss"])


def loss(tasks: list[str]) -> None:
    """Print losses and ratios."""
    for task in tasks:
        plain = 0.0
        for wires in (PLAIN, *COARSE):
            found = [train(task, seed, wires) for seed in SEEDS]
            plain = plain or statistics.mean(found)
            ratio = statistics.mean(found) / plain
            met = "" if wires == PLAIN else f": {'met' if ratio <= GOAL else 'missed'}"
            losses = ", ".join(f"{one:.4f}" for one in found)
            print(f"{task} {'/'.join(wires)}: {losses}; ratio {ratio:.3f}{met}", flush=True)


class OneTensor(nn.Module):
    """A model without computing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS))


def cpu(rounds: int) -> None:
    """Print milliseconds."""
    torch.set_num_threads(1)
    gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    found: dict[Pair, list[tuple[float, float]]] = {wires: [] for wires in TYPES}
    with ExitStack() as stack:
        joined = {}
        for wires in TYPES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-coarse-")))
            served = stack.enter_context(serve(folder, "--eta=1e-6"))
            model = OneTensor()
            worker = ParameterServer(served.address, model, delta_wire=wires[0], parameter_wire=wires[1])
            joined[wires] = served, stack.enter_context(worker), model
        for turn in range(-1, rounds):
            for wires, (served, ps, model) in joined.items():
                before = processor_seconds([served.process.pid]), time.process_time()
                for _ in range(COMMITS):
                    if model.weight.grad is None:
                        model.weight.grad = gradient.clone()
                    else:
                        model.weight.grad.copy_(gradient)
                    ps.step(torch.zeros(()))
                after = processor_seconds([served.process.pid]), time.process_time()
                if turn >= 0:
                    at_server, at_worker = (1000 * (b - a) / COMMITS for a, b in zip(before, after, strict=True))
                    found[wires].append((at_worker, at_server))
    for wires, figures in found.items():
        at_worker, at_server = (statistics.median(values) for values in zip(*figures, strict=True))
        both = at_worker + at_server
        print(
            f"{'/'.join(wires)}: worker {at_worker:.1f} ms, server {at_server:.1f} ms, together {both:.1f} ms",
            flush=True,
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["loss", "cpu"], choices=["loss", "cpu"])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    if "loss" in given.what:
        loss(given.tasks)
    if "cpu" in given.what:
        cpu(given.rounds)


if __name__ == "__main__":
    main()
