"""All runs of a plan, in turn."""

import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.harness import plan
from benchmarks.harness.results import Results, rate
from benchmarks.harness.run import Nurseries, run_once


def run_all(made: plan.Plan, results: Results, output: Path, console: Console) -> None:
    """As many rounds, of as many seconds, as the results' settings say; every run is added to them and saved at once.

    All rounds of a case come before the next case, so that what is compared lies close together in time. Exits when
    nothing of the plan can be run.
    """
    for one in made.skipped:
        console.print(
            f"not run: {one.contender}, P = {one.parameters:,}, {one.workers} workers: {one.reason}",
            markup=False,
            highlight=False,
        )
    if not made.runs:
        sys.exit("nothing of what was asked for can run here")
    rounds, seconds = results.settings["rounds"], results.settings["seconds"]
    total = made.runs * rounds
    done = 0
    began = time.monotonic()
    nurseries = Nurseries()
    try:
        for case, contenders in made.contenders.items():
            for round_ in range(rounds):
                # Another one starts each round: what comes after whom changes.
                turn = round_ % len(contenders)
                for contender in contenders[turn:] + contenders[:turn]:
                    run = run_once(contender, case, plan.window(case, seconds), round_, nurseries)
                    results.runs.append(run)
                    results.save(output)
                    done += 1
                    said = f"failed: {run.error}" if run.error is not None else f"{rate(run):,.1f} commits/s"
                    left = (time.monotonic() - began) / done * (total - done) / 60
                    line = f"[{done}/{total}, {left:.0f} min left] {case}, {contender.name}: {said}"
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
    finally:
        nurseries.close()
