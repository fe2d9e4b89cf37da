"""What --telemetry costs: the server's processor time a commit with it, over that without (`make bench-telemetry`).

A pair of servers runs side by side for the whole of it, and the same worker processes commit to one and then to the
other, so that both see the machine as it is at the time. A model as small as the default shows the most: what telemetry
takes is the same for each commit, whatever the model. Exit code 1: the median of the ratios is above the goal.
"""

import argparse
import multiprocessing
import multiprocessing.pool
import statistics
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil
from gem_worker.client import Observer
from round_trips import commit_for
from served import Served, serve

GOAL = 1.02


def main() -> None:
    """Measure, print each ratio, and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=2_048)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=4.0, help="of committing to one server in one round")
    arguments = parser.parse_args()
    ways = ("--no-telemetry", "--telemetry")
    ratios: list[float] = []
    with ExitStack() as stack:
        servers: dict[str, Served] = {}
        for way in ways:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-bench-")))
            flags = (way, f"--min-workers={arguments.workers}", "--durability=none")
            servers[way] = stack.enter_context(serve(folder, *flags))
        spawn = multiprocessing.get_context("spawn")
        manager = stack.enter_context(spawn.Manager())
        pool = stack.enter_context(spawn.Pool(arguments.workers))
        for turn in range(arguments.rounds):
            taken: dict[str, float] = {}
            for way in ways if turn % 2 else reversed(ways):
                barrier = manager.Barrier(arguments.workers)
                jobs = [
                    (arguments.seconds, servers[way].address, f"worker-{index}", arguments.parameters, barrier)
                    for index in range(arguments.workers)
                ]
                taken[way] = processor_time_a_commit(pool, jobs, servers[way])
            ratios.append(taken["--telemetry"] / taken["--no-telemetry"])
            print(
                f"round {turn + 1}: {1e6 * taken['--no-telemetry']:.0f} us a commit without, "
                f"{1e6 * taken['--telemetry']:.0f} us with: {ratios[-1]:.3f}",
                flush=True,
            )
    median = statistics.median(ratios)
    print(f"median {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), goal at most {GOAL}")
    sys.exit(median > GOAL)


def processor_time_a_commit(
    pool: multiprocessing.pool.Pool, jobs: list[tuple[float, str, str, int, Barrier]], served: Served
) -> float:
    """Let the workers join, commit and leave; processor time of the server meanwhile, in seconds a commit."""
    server = psutil.Process(served.process.pid)
    with Observer(served.address) as observer:
        commits, times = int(observer.get_status()["commits"]), server.cpu_times()
        pool.starmap(commit_for, jobs, chunksize=1)
        commits, later = int(observer.get_status()["commits"]) - commits, server.cpu_times()
    return (later.user + later.system - times.user - times.system) / commits


if __name__ == "__main__":
    main()
