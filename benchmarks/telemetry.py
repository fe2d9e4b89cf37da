"""What --telemetry costs: the server's processor time a commit with it, over that without.

One server process serves all the time, and its telemetry is switched off and on in turn, because two processes that do
the very same differ by more than what is to be measured (a tenth was seen: where things happen to lie in memory). With
a model as small as the default the ratio is at its highest: telemetry takes the same for a commit of any size. Exit
code 1: the median of the ratios is above the goal.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection

from gem_server.server import Server
from gem_server.settings import ServerSettings
from gem_server.sweeping import leave_the_old_alone
from gem_server.telemetry.telemetry import Telemetry

from benchmarks.round_trips import commit_for

GOAL = 1.02
SLICES = 40  # of each way in a round, in turn: what else the machine does is then the same for both


def main() -> None:
    """Measure, print each ratio, and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, default=2_048)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each way in each round")
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs, arguments.workers, arguments.rounds, arguments.seconds))
    server.start()
    seconds = 2 * arguments.rounds * arguments.seconds
    with spawn.Manager() as manager, spawn.Pool(arguments.workers) as pool:
        start = manager.Barrier(arguments.workers)
        address = ours.recv()
        jobs = [
            (1.05 * seconds + 2, address, f"worker-{n}", arguments.parameters, start) for n in range(arguments.workers)
        ]
        pool.starmap(commit_for, jobs, chunksize=1)
    ratios = []
    for turn, (without, with_it) in enumerate(ours.recv(), start=1):
        ratios.append(with_it / without)
        print(f"round {turn}: {1e6 * without:.0f} us a commit without, {1e6 * with_it:.0f} with: {ratios[-1]:.3f}")
    server.join()
    median = statistics.median(ratios)
    print(f"median {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), goal at most {GOAL}")
    sys.exit(median > GOAL)


def serve(pipe: Connection, workers: int, rounds: int, seconds: float) -> None:
    """The server's process: sends its address, and at the end the processor times of each round."""
    asyncio.run(_serve(pipe, workers, rounds, seconds))


async def _serve(pipe: Connection, workers: int, rounds: int, seconds: float) -> None:
    server = Server(ServerSettings(bind="127.0.0.1:0", min_workers=workers))
    address = f"127.0.0.1:{await server.start()}"
    leave_the_old_alone()  # as `gemps serve` does
    pipe.send(address)
    while server.run.commits < 2 * workers:
        await asyncio.sleep(0.05)
    taken = []
    for _ in range(rounds):
        took, commits = {False: 0.0, True: 0.0}, {False: 0, True: 0}
        for part in range(SLICES):
            for wanted in (False, True) if part % 2 else (True, False):
                _switch(server.telemetry, wanted)
                commits[wanted] -= server.run.commits
                took[wanted] -= time.process_time()
                await asyncio.sleep(seconds / SLICES)
                commits[wanted] += server.run.commits
                took[wanted] += time.process_time()
        taken.append((took[False] / commits[False], took[True] / commits[True]))
    while len(server.sessions):
        await asyncio.sleep(0.05)
    await server.stop()
    pipe.send(taken)


def _switch(telemetry: Telemetry, wanted: bool) -> None:
    telemetry.is_wanted = wanted


if __name__ == "__main__":
    main()
