"""gemps against its peers and against the limits of the machine, side by side (`make bench`).

Everybody moves the same model the same way (peers/interface.py says what a step is), in turn, several rounds. Compare
figures of one call only: machines differ, and so does what else they do. Every run goes into a JSON file as soon as it
is over; tables and targets come from that file, here at the end or by --show, and `bench_picture.py` draws it.
docs/benchmarks.md says what each contender does and how to read the tables.
"""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.harness import plan, report, surroundings
from benchmarks.harness.environments import REPOSITORY
from benchmarks.harness.results import About, Results
from benchmarks.harness.rounds import run_all
from benchmarks.peers import CONTENDERS, USUAL


def main() -> None:
    """Run, and show."""
    arguments = _arguments()
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the processes of a run end with it
    if arguments.list:
        for name, contender in CONTENDERS.items():
            console.print(f"{name}: {contender.title}. {contender.does}", markup=False, highlight=False)
        return
    if arguments.show:
        try:
            report.show(Results.load(arguments.output), console)
        except FileNotFoundError:
            sys.exit(f"there is no {arguments.output}: run the benchmark first, or name its file with --output")
        except (OSError, ValueError) as error:
            sys.exit(str(error))
        return
    if arguments.parameters or arguments.workers:
        parameters, workers = arguments.parameters or plan.PARAMETERS, arguments.workers or plan.WORKERS
        parts = plan.product(arguments.contenders, parameters, workers)
    else:
        parts = plan.PRESETS[arguments.preset](arguments.contenders)
    made = plan.make(parts, CONTENDERS, plan.Room.here())
    results = Results(
        surroundings.machine(),
        surroundings.versions(),
        {"rounds": arguments.rounds, "seconds": arguments.seconds},
        {name: About.of(contender) for name, contender in CONTENDERS.items() if name in arguments.contenders},
        made.skipped,
    )
    run_all(made, results, arguments.output, console)
    report.show(results, console)
    console.print(f"all of it: {arguments.output}", markup=False, highlight=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="Presets: quick (the default) is everybody with 4 workers at P = 2 048 and 4 194 304, and gemps with "
        "32: ten minutes on two cores. targets is what the targets and the picture are about, all sizes with 4 "
        "workers, curves from 1 to 32 workers, gemps with 32: three quarters of an hour. full is every size with "
        "every number of workers: hours.",
    )
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(USUAL), metavar="NAME")
    parser.add_argument(
        "--parameters",
        type=int,
        nargs="+",
        help=f"instead of a preset: sizes of the model, of {plan.PARAMETERS} or others",
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", help=f"instead of a preset: numbers of workers, of {plan.WORKERS} or others"
    )
    parser.add_argument("--preset", choices=list(plan.PRESETS), default="quick", help="see below")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="timed in each run; four times that for models beyond 16 million"
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "runs" / "bench.json", help="the JSON file")
    parser.add_argument("--show", action="store_true", help="run nothing: the tables of the JSON file")
    parser.add_argument("--list", action="store_true", help="run nothing: the names of the contenders")
    arguments = parser.parse_args()
    for name in ("parameters", "workers"):
        if any(value < 1 for value in getattr(arguments, name) or ()):
            parser.error(f"--{name}: at least 1")
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("--rounds: at least 1, and --seconds: more than 0")
    return arguments


if __name__ == "__main__":
    main()
