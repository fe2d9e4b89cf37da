"""GEM against DOWNPOUR with many workers, in both serving orders, and one GEM worker at equal samples.

Five runs of the real command and one table. Under round-robin order every worker's delta is as stale as there are
other workers, which is where DOWNPOUR breaks down; in FIFO order the result depends on arrival. Exits with 1 when,
under round-robin, GEM stays below 0.95 or DOWNPOUR reaches 0.5.

Expected of equal samples, and only reported: one worker's training loss is lower, because its updates are never stale,
and GEM lets n workers together move the parameters about as far as one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RULES = ("gem", "downpour")
ORDERS = ("round-robin", "fifo")
ALONE = "one worker"  # in place of an order: as many samples as the other runs
BATCH_SIZE = 64
GEM_AT_LEAST = 0.95
DOWNPOUR_BELOW = 0.5


def train(rule: str, order: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `gemps train` and return its summary.json; ends the comparison where the run failed."""
    is_alone = order == ALONE
    settings = {
        "--rule": rule,
        "--order": "fifo" if is_alone else order,
        "--workers": 1 if is_alone else arguments.workers,
        "--steps": arguments.steps * (arguments.workers if is_alone else 1),
        "--batch-size": BATCH_SIZE,
        "--eta": arguments.eta,
        "--seed": arguments.seed,
        "--task": "digits",
        "--model": "mlp",
        "--device": "cpu",
        "--set=report_interval": 0.1,
        "--run-dir": folder,
    }
    command = [sys.executable, "-m", "gem_cli", "train", *(f"{flag}={value}" for flag, value in settings.items())]
    print(f"\n{rule}, {order}: gemps {' '.join(command[3:-1])}", flush=True)
    if subprocess.run(command).returncode != 0:
        sys.exit(f"the run failed; its folder is {folder}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def show(results: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Print the runs side by side, a column each."""
    table = Table(title="test accuracy and what went with it")
    table.add_column("")
    for rule, order in results:
        table.add_column(f"{rule}\n{order}", justify="right")
    rows = {
        "test accuracy": ("accuracy", ".4f"),
        "test loss": ("test_loss", ".3g"),
        "training loss": ("training_loss", ".3g"),
        "staleness (mean)": ("staleness_mean", ".1f"),
        "pi (mean)": ("mean_pi", ".3f"),
        "blocked (mean)": ("blocked_fraction", ".3f"),
        "Jain's index": ("jain_index", ".4f"),
        "commits": ("commits", "d"),
        "commits/s": ("commits_per_second", ".0f"),
    }
    for name, (key, form) in rows.items():
        values = (summary[key] for summary in results.values())
        table.add_row(name, *("-" if value is None else format(value, form) for value in values))
    Console().print("\n", table)


def main() -> None:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150, help="of each worker")
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gemps-compare-") as parent:
        runs = [*((rule, order) for order in ORDERS for rule in RULES), ("gem", ALONE)]
        folders = {(rule, order): Path(parent) / f"{rule}-{order.replace(' ', '-')}" for rule, order in runs}
        results = {key: train(*key, folder, arguments) for key, folder in folders.items()}
    show(results)
    many, one = (results["gem", order]["training_loss"] for order in ("round-robin", ALONE))
    print(f"training loss after {arguments.workers * arguments.steps * BATCH_SIZE:,} samples: ", end="")
    print(f"{arguments.workers} workers {many:.3g}, one worker {one:.3g} (expected: one worker's is lower)")
    gem, downpour = (results[rule, "round-robin"]["accuracy"] for rule in RULES)
    if gem < GEM_AT_LEAST or downpour >= DOWNPOUR_BELOW:
        sys.exit(
            f"expected under round-robin: gem at least {GEM_AT_LEAST}, downpour below {DOWNPOUR_BELOW}; "
            f"found gem {gem:.4f}, downpour {downpour:.4f}"
        )


if __name__ == "__main__":
    main()
