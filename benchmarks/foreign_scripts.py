"""What several workers gain on training scripts that know nothing of gemps.

    python -m benchmarks.foreign_scripts --scripts FOLDER [--only TEXT] [--workers 3 8] [--seeds 0 1 2] [--output FILE]

FOLDER holds scripts as their authors wrote them, their ports, and `scripts.toml`, a table for each script:

    [nanogpt]
    script = "nanogpt.py"
    port = "nanogpt_gemps.py"
    arguments = "--seed {seed} --max-iters {steps} --batch-size {batch}"
    steps = 300
    batch = 12

In `arguments`, {work} stands for the steps times the growth of the batch, for scripts that count samples or epochs. The
last line that a script prints is a JSON object with its held-out `loss` or its `return`. The port differs from the
script only by the lines that make it a worker: it has the same arguments.

A script runs alone with S and n S steps, alone with S steps and an n-fold batch at its own learning rate (what
synchronous data parallelism computes), and as n workers with S steps each at a server with its defaults.
Gain: the share of what n times the data bring alone that the workers reach,
(alone S - workers) / (alone S - alone n S). The same with one worker in place of the script alone compares equal
optimizers, because a server may well be better than the script's own. A run that the output already has is not
repeated.
"""

import argparse
import difflib
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.served import serve

ALONE, SYNCHRONOUS, WORKERS = "alone", "synchronous", "workers"
POLL_SECONDS = 0.1


class FailedRunError(Exception):
    """A script exited with another code than 0; the message has its last lines."""


@dataclass(frozen=True)
class Script:
    """A table of scripts.toml.

    steps: S, in whatever unit the script counts them.
    batch: of one process.
    """

    name: str
    folder: Path
    script: str
    port: str
    arguments: str
    steps: int
    batch: int

    def command(self, file: str, seed: int, growth: int, batch_growth: int) -> list[str]:
        """With `growth` times the samples of S steps, in batches `batch_growth` times as large."""
        values = {
            "seed": seed,
            "steps": self.steps * growth // batch_growth,
            "work": self.steps * growth,
            "batch": self.batch * batch_growth,
        }
        return [sys.executable, file, *shlex.split(self.arguments.format(**values))]

    @property
    def changed_lines(self) -> int:
        """Of the port, in which indentation does not count: "lines nested under a replaced line move with it"."""
        before, after = (_stripped_lines(self.folder / file) for file in (self.script, self.port))
        changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in changes if kind != "equal")


@dataclass(frozen=True)
class Case:
    """A way to run a script: `workers` processes of a run, or a batch that many times as large; `growth` times S."""

    kind: str
    workers: int
    growth: int

    def __str__(self) -> str:
        """Return the key under which this case has its results."""
        return f"{self.kind}, {self.workers}, {self.growth} S"


def read_scripts(folder: Path) -> list[Script]:
    """Read the scripts that scripts.toml in `folder` declares."""
    tables = tomllib.loads((folder / "scripts.toml").read_text(encoding="utf-8"))
    return [Script(name=name, folder=folder, **table) for name, table in tables.items()]


def cases_of(workers: Sequence[int]) -> list[Case]:
    """What the gain of these numbers of workers needs, the script alone first."""
    several = [count for count in workers if count > 1]
    return [
        *(Case(ALONE, 1, growth) for growth in (1, *several)),
        *(Case(SYNCHRONOUS, count, count) for count in several),
        *(Case(WORKERS, 1, growth) for growth in (1, *several)),
        *(Case(WORKERS, count, count) for count in several),
    ]


def measure(script: Script, case: Case, seed: int) -> dict[str, float]:
    """Run a case: the result that the script prints, and the seconds that it takes.

    Of several workers, the result is that of the one that ends last: its model has every commit of the run.

    Raises:
        FailedRunError: a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="gemps-foreign-") as name:
        folder = Path(name)
        began = time.monotonic()
        if case.kind != WORKERS:
            batch_growth = case.workers
            result = run_all(script, [script.command(script.script, seed, case.growth, batch_growth)], {}, folder)
        else:
            command = script.command(script.port, seed, case.growth // case.workers, 1)
            data = f"--data-dir={folder / 'data'}"
            with serve(folder, f"--min-workers={case.workers}", data) as served:
                environment = {"GEMPS_SERVER": served.address, "GEMPS_WORKERS": str(case.workers)}
                result = run_all(script, [command] * case.workers, environment, folder)
        return {"result": result, "seconds": time.monotonic() - began}


def run_all(script: Script, commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path) -> float:
    """Run commands side by side in the script's folder, one thread each; the result of the one that ends last."""
    running = {}
    for index, command in enumerate(commands):
        log = folder / f"script-{index}.log"
        own = {"GEMPS_WORKER_INDEX": str(index), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=script.folder, env={**os.environ, **environment, **own}
            )
        running[process] = log
    result = 0.0
    try:
        while running:
            time.sleep(POLL_SECONDS)
            for process in [one for one in running if one.poll() is not None]:
                result = _result_of(process.returncode, running.pop(process).read_text(encoding="utf-8"))
    finally:
        for process in running:
            process.kill()
            process.wait()
    return result


def _result_of(return_code: int, log: str) -> float:
    lines = log.strip().splitlines()
    printed = [line for line in lines if line.startswith("{") and line.endswith("}")]
    if return_code != 0 or not printed:
        raise FailedRunError(f"exit code {return_code}:\n" + "\n".join(lines[-15:]))
    (value,) = json.loads(printed[-1]).values()
    return float(value)


def _stripped_lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


Runs = Mapping[str, Mapping[str, float]]


def mean_of(runs: Runs) -> str:
    """Return the mean result of all seeds that have run."""
    return f"{statistics.mean(run['result'] for run in runs.values()):.4g}" if runs else ""


def gain(short: Runs, long: Runs, found: Runs) -> str:
    """How much of the way from `short` to `long` is found, in the mean of the seeds that all have; "" without any."""
    seeds = set(short) & set(long) & set(found)
    if not seeds:
        return ""
    first, last, reached = (statistics.mean(runs[seed]["result"] for seed in seeds) for runs in (short, long, found))
    return f"{(first - reached) / (first - last):.2f}"


def row(script: Script, results: Mapping[str, Runs], workers: int) -> list[str]:
    """Return the cells of one script with this number of workers, in the order of COLUMNS."""
    cases = (
        Case(ALONE, 1, 1),
        Case(ALONE, 1, workers),
        Case(SYNCHRONOUS, workers, workers),
        Case(WORKERS, 1, 1),
        Case(WORKERS, 1, workers),
        Case(WORKERS, workers, workers),
    )
    found = [results.get(str(case), {}) for case in cases]
    short, long, synchronous, one, one_long, many = found
    gains = gain(short, long, synchronous), gain(short, long, many), gain(one, one_long, many)
    return [script.name, str(script.changed_lines), str(workers), str(len(many)), *map(mean_of, found), *gains]


COLUMNS = (
    *("script", "changed lines", "n", "seeds", "alone S", "alone n S", "synchronous", "one worker S", "one worker n S"),
    *("n workers", "gain of synchronous", "gain", "gain over one worker"),
)


def table(scripts: Sequence[Script], results: Mapping[str, Any], workers: Sequence[int]) -> str:
    """Return the results of all scripts as a Markdown table."""
    counts = [count for count in workers if count > 1]
    rows = (row(script, results.get(script.name, {}), count) for script in scripts for count in counts)
    lines = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, *rows)]
    return "\n".join((lines[0], "|---" * len(COLUMNS) + "|", *lines[1:]))


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scripts", type=Path, required=True, metavar="FOLDER", help="with scripts.toml")
    parser.add_argument("--only", default="", metavar="TEXT", help='runs with this text, as in "nanogpt | workers, 3"')
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs") / "foreign-scripts.json")
    arguments = parser.parse_args()
    scripts, output = read_scripts(arguments.scripts.resolve()), arguments.output
    results: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = False
    for seed, case, script in itertools.product(arguments.seeds, cases_of(arguments.workers), scripts):
        runs = results.setdefault(script.name, {}).setdefault(str(case), {})
        if str(seed) in runs or arguments.only not in f"{script.name} | {case}":
            continue
        try:
            runs[str(seed)] = measure(script, case, seed)
        except FailedRunError as error:
            failed = True
            print(f"{script.name} | {case} | seed {seed} failed with {error}", file=sys.stderr, flush=True)
            continue
        print(f"{script.name} | {case} | seed {seed}: {runs[str(seed)]}", file=sys.stderr, flush=True)
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(scripts, results, arguments.workers))
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
