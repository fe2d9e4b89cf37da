"""What choosing the wire types is worth: `python -m benchmarks.chosen_wire_types` (needs root, for the links).

One worker with 1 M parameters that computes for 100 ms a step, over links of 10, 100 and 1000 Mbit/s
(`limited_links.py`): steps/s once the worker has measured its exchanges, with --network auto and with fast (float32).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from gem_worker import ParameterServer
from torch import nn

from benchmarks.limited_links import limited_links
from benchmarks.served import serve

PARAMETERS, COMPUTE_SECONDS = 1_000_000, 0.1
MEGABITS = (10, 100, 1000)
# Two measurements of a worker that changes its wire types twice.
WARM_UP = 12


class OneTensor(nn.Module):
    """A model without computing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(PARAMETERS))


def work(address: str, network: str, steps: int) -> None:
    """Be the worker; print steps/s and the wire types in the end."""
    torch.set_num_threads(1)
    model = OneTensor()
    gradient = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(0))
    with ParameterServer(address, model, network=network) as ps:  # type: ignore[arg-type]
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                began = time.perf_counter()
            time.sleep(COMPUTE_SECONDS)
            model.weight.grad = gradient.clone() if model.weight.grad is None else model.weight.grad.copy_(gradient)
            ps.step(0.0)
        rate = steps / (time.perf_counter() - began)
        types = " and ".join(one.name.lower() for one in ps.client.membership.wire_types)
    print(f"{rate:.2f} steps/s with {types}", flush=True)


def main() -> None:
    """Print a line for each link and network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each run")
    parser.add_argument("--megabits", type=int, nargs="+", default=MEGABITS, help="rates of the links, in Mbit/s")
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "NETWORK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(*given.worker, given.steps)
        return
    for megabits in given.megabits:
        with limited_links(megabits, 1) as ((place,), at_workers):
            for network in ("fast", "auto"):
                with tempfile.TemporaryDirectory(prefix="gemps-bench-") as folder:
                    flags = ("--rule=gem", "--eta=1e-6", "--insecure")
                    with serve(Path(folder), *flags, place=place) as served:
                        command = [*at_workers, sys.executable, "-m", "benchmarks.chosen_wire_types"]
                        command += ["--worker", served.address, network, f"--steps={given.steps}"]
                        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                print(f"{megabits} Mbit/s, {network}: {done.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
