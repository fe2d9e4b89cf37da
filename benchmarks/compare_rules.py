"""GEM against DOWNPOUR with many workers, in both serving orders (`make compare`).

Four runs of the real command, one table, and with `--picture FILE` the picture of the README, from the runs' own
metrics.jsonl. Under round-robin order every worker's delta is as stale as there are other workers, which is where
DOWNPOUR breaks down; in FIFO order what it does depends on who comes when. Exits with 1 when, under round-robin, GEM
stays below 0.95 or DOWNPOUR reaches 0.5.
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
from rules_picture import draw

RULES = ("gem", "downpour")
ORDERS = ("round-robin", "fifo")
GEM_AT_LEAST = 0.95
DOWNPOUR_BELOW = 0.5


def train(rule: str, order: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `gemps train` and return its summary.json; ends the comparison where the run failed."""
    settings = {
        "--rule": rule,
        "--order": order,
        "--workers": arguments.workers,
        "--steps": arguments.steps,
        "--eta": arguments.eta,
        "--seed": arguments.seed,
        "--task": "digits",
        "--model": "mlp",
        "--device": "cpu",
        "--report-interval": 0.1,
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
        "staleness (mean)": ("staleness_mean", ".1f"),
        "mean pi, at the end": ("mean_pi", ".3f"),
        "blocked, at the end": ("blocked_fraction", ".3f"),
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
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it as FILE.png, and FILE-dark.png beside it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gemps-compare-") as parent:
        folders = {(rule, order): Path(parent) / f"{rule}-{order}" for order in ORDERS for rule in RULES}
        results = {key: train(*key, folder, arguments) for key, folder in folders.items()}
        if arguments.picture is not None:
            draw(folders, arguments.picture, arguments.workers, arguments.eta)
    show(results)
    gem, downpour = (results[rule, "round-robin"]["accuracy"] for rule in RULES)
    if gem < GEM_AT_LEAST or downpour >= DOWNPOUR_BELOW:
        sys.exit(
            f"expected under round-robin: gem at least {GEM_AT_LEAST}, downpour below {DOWNPOUR_BELOW}; "
            f"found gem {gem:.4f}, downpour {downpour:.4f}"
        )


if __name__ == "__main__":
    main()
