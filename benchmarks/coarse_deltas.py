"""What `--delta-wire int4` and `sparse` cost: `python benchmarks/coarse_deltas.py`.

- loss: digits and text, 4 workers, three seeds, equally many steps, round-robin, so that the runs of a seed differ by
  the wire type alone; final held-out loss, and its ratio to float32's. Goal: at most 1.02, mean of the seeds.
- cpu: processor milliseconds of a commit of 4.2 million parameters, of the worker and of the server; parameters return
  in float32. The types take turns.
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
from harness.processes import processor_seconds
from served import serve
from torch import nn

COARSE: tuple[WireName, ...] = ("int4", "sparse")
TYPES: tuple[WireName, ...] = ("float32", "int8", *COARSE)
SEEDS = range(3)
TASKS = {
    "digits": ("--task=digits", "--steps=1000"),
    "text": ("--task=text", "--steps=400", "--batch-size=16", "--precondition=averaged-rms", "--eta=0.002"),
}
GOAL = 1.02
ELEMENTS, COMMITS = 4_194_304, 10


def train(task: str, seed: int, wire: str) -> float:
    """The final held-out loss of a run."""
    with tempfile.TemporaryDirectory(prefix="gemps-coarse-") as folder:
        command = [sys.executable, "-m", "gem_cli", "train", "--workers=4", f"--seed={seed}", "--order=round-robin"]
        command += [f"--run-dir={folder}/run", f"--delta-wire={wire}", "--sinks=none", *TASKS[task]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        summary: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))
        return float(summary["test_loss"])


def loss(tasks: list[str]) -> None:
    """Print losses and ratios."""
    for task in tasks:
        losses = {wire: [train(task, seed, wire) for seed in SEEDS] for wire in ("float32", *COARSE)}
        for name, found in losses.items():
            ratio = statistics.mean(found) / statistics.mean(losses["float32"])
            met = "" if name == "float32" else f": {'met' if ratio <= GOAL else 'missed'}"
            print(f"{task} {name}: {', '.join(f'{one:.4f}' for one in found)}; ratio {ratio:.3f}{met}", flush=True)


class OneTensor(nn.Module):
    """A model without computing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS))


def cpu(rounds: int) -> None:
    """Print milliseconds."""
    torch.set_num_threads(1)
    gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    found: dict[str, list[tuple[float, float]]] = {wire: [] for wire in TYPES}
    with ExitStack() as stack:
        joined = {}
        for wire in TYPES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-coarse-")))
            served = stack.enter_context(serve(folder, "--eta=1e-6"))
            model = OneTensor()
            joined[wire] = served, stack.enter_context(ParameterServer(served.address, model, delta_wire=wire)), model
        for turn in range(-1, rounds):
            for wire, (served, ps, model) in joined.items():
                before = processor_seconds([served.process.pid]), time.process_time()
                for _ in range(COMMITS):
                    if model.weight.grad is None:
                        model.weight.grad = gradient.clone()
                    else:
                        model.weight.grad.copy_(gradient)
                    ps.step(torch.zeros(()))
                after = processor_seconds([served.process.pid]), time.process_time()
                if turn >= 0:
                    server, worker = (1000 * (b - a) / COMMITS for a, b in zip(before, after, strict=True))
                    found[wire].append((worker, server))
    for name, figures in found.items():
        worker, server = (statistics.median(values) for values in zip(*figures, strict=True))
        print(f"{name}: worker {worker:.1f} ms, server {server:.1f} ms, together {worker + server:.1f} ms", flush=True)


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
