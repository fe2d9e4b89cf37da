"""Run stages of the study of docs/default.md; an interrupted or repeated one continues.

python -m benchmarks.default_study STAGE... [--seeds 0 1 2] [--output runs/default.json]
python -m benchmarks.default_study --check      # the loop against gem_simulator, to the last digit
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from gem_simulator import SimulationSettings, simulate

from benchmarks.default_study.plan import DEFAULTS, METHODS, SECOND_DEFAULTS, TEXT, TRANSLATED, stage
from benchmarks.default_study.tables import (
    Results,
    default_rows,
    markdown,
    own_rows,
    translation_rows,
    worst_ratios,
)
from benchmarks.default_study.training import CASES, CONTEXT, EXPONENTIAL, Run, task_of, train


def check() -> None:
    """Compare rule and clock with the simulator's: plain gem, 8 workers."""
    case = CASES[TEXT]
    run = Run(TEXT, "gem", 0.1, 8, EXPONENTIAL, 400)
    settings = SimulationSettings.model_validate(
        {"task": "text", "model": case.model, "context": CONTEXT, "batch_size": case.batch_size}
        | {"clip_norm": case.clip_norm, "layers": 2, "width": 24, "heads": 2, "workers": run.workers, "eta": run.rate}
        | {"commits": run.gradients, "compute_time": "exponential:1", "seed": run.seed}
    )
    expected = simulate(settings, task=task_of(TEXT)).evaluations[-1].test_loss
    found = train(run, METHODS["gem"])["loss"]
    print(f"held-out loss {found!r}; of the simulator {expected!r}")
    if found != expected:
        sys.exit("The loop and the simulator differ.")


def print_tables(results: Results) -> None:
    """Print all that the results have, as docs/default.md does."""
    for case, script, methods, stages in TRANSLATED:
        runs = [run for name in stages for run in stage(name, 0) if run.case == case]
        columns = ("rate", "n", "alone, S", "alone, n S", *(f"{one}: loss (gain), ratio" for one in methods))
        print(f"{case}, {script}\n\n{markdown(columns, translation_rows(results, case, script, methods, runs))}\n")
        for method, (worst, mean) in worst_ratios(results, case, methods, runs).items():
            print(f"{method}: worst ratio {worst:.3f}, geometric mean {mean:.3f}")
        print()
    for methods, stages in ((DEFAULTS, ("default", "digits", "many")), (SECOND_DEFAULTS, ("second default",))):
        columns = ("model", "n", "gradients", *(f"{name}, eta {rate:g}" for name, rate in methods))
        runs = [run for name in stages for run in stage(name, 0)]
        print(f"{markdown(columns, default_rows(results, methods, runs))}\n")
    columns = ("model", "optimizer", "n", "alone, S", "alone, n S", "loss", "gain")
    print(markdown(columns, own_rows(results, stage("own", 0))))


def main() -> None:
    """Run what the output does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="pilot, adamw, adam, default, digits, own")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, default=Path("runs") / "default.json")
    parser.add_argument("--check", action="store_true", help="compare the loop with the simulator")
    parser.add_argument("--tables", action="store_true", help="print the output's tables")
    arguments = parser.parse_args()
    if arguments.check:
        check()
    output: Path = arguments.output
    results = json.loads(output.read_text("utf-8")) if output.exists() else {"torch": torch.__version__, "runs": {}}
    output.parent.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        for name in arguments.stages:
            for run in stage(name, seed):
                if run.key not in results["runs"]:
                    found = train(run, METHODS[run.method])
                    results["runs"][run.key] = {
                        name: round(one, 5) for name, one in found.items() if math.isfinite(one)
                    }
                    print(f"{run.key}: {results['runs'][run.key]}", flush=True)
                    output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.tables:
        print_tables(results["runs"])


if __name__ == "__main__":
    main()
