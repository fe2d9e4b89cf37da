"""Many workers under one shared budget, by hand: one server, 32 `gemps work` processes, 200 000 commits.

The first worker is started before the server. Shows, and fails with exit code 1 unless: everybody exits with 0, the
budget is spent to the commit, Jain's index of the commits while all are live is at least 0.99, and the server's
anonymous memory at the end is within 5 MiB of what it was at a tenth of the budget.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem_worker.client import ClientError, Observer

from benchmarks.served import free_port

MIB = 1024 * 1024
JAIN_AT_LEAST = 0.99
MEMORY_GROWTH_AT_MOST = 5 * MIB


@contextlib.contextmanager
def started(name: str, arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `gemps` process with its output in a log; it has ended when the context has."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "gem_cli", *arguments], stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def follow(
    address: str, commits: int, processes: list[subprocess.Popen[bytes]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Watch the run; returns its status at a tenth of the budget, and when the budget was spent."""
    early: dict[str, Any] = {}
    said = time.monotonic()
    with Observer(address) as observer:
        while True:
            try:
                for status in observer.watch_status(0.2):
                    if not early and status["commits"] >= commits // 10:
                        early = status
                    if time.monotonic() - said > 10:
                        said = time.monotonic()
                        live = sum(
                            1 for worker in status["workers"] if worker["state"].endswith(("JOINED", "TRAINING"))
                        )
                        print(f"  {status['commits']} commits, {live} workers live", flush=True)
                    if status["run_state"] == "RUN_STATE_FINISHED":
                        return early, status
                    check_alive(processes)
            except ClientError:
                check_alive(processes)
                time.sleep(0.5)  # the server is not there yet


def check_alive(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the whole thing when one of them has failed."""
    for process in processes:
        if process.poll():
            sys.exit(f"{process.args} failed with exit code {process.returncode}")


def main() -> None:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--commits", type=int, default=200_000)
    arguments = parser.parse_args()
    address = f"127.0.0.1:{free_port()}"
    worker = ["work", address, "--task=digits", "--model=mlp", "--device=cpu"]
    serve = ["serve", f"--bind={address}", f"--commits={arguments.commits}", f"--min-workers={arguments.workers}"]
    with tempfile.TemporaryDirectory(prefix="gemps-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)

        def start(process_name: str, command: list[str]) -> subprocess.Popen[bytes]:
            return stack.enter_context(started(process_name, command, folder))

        workers = [start("worker-0", [*worker, "--worker-name=worker-0"])]
        time.sleep(5)
        server = start("server", [*serve, "--exit-when-finished"])
        others = range(1, arguments.workers)
        workers += [start(f"worker-{index}", [*worker, f"--worker-name=worker-{index}"]) for index in others]
        early, late = follow(address, arguments.commits, [server, *workers])
        codes = [process.wait(120) for process in workers]
        server_code = server.wait(60)
    growth = int(late["memory"]["anonymous_bytes"]) - int(early["memory"]["anonymous_bytes"])
    counts = [int(one["commits"]) for one in late["workers"]]
    print(f"exit codes: server {server_code}, workers {sorted(set(codes))}")
    print(f"commits: {late['commits']} of {arguments.commits}, a worker {min(counts)} to {max(counts)}")
    print(f"Jain's index while all were live: {late['jain_index']:.5f}")
    print(
        f"server's anonymous memory: {int(early['memory']['anonymous_bytes']) / MIB:.1f} MiB at {early['commits']} "
        f"commits, {int(late['memory']['anonymous_bytes']) / MIB:.1f} MiB at {late['commits']}"
    )
    failed = [
        problem
        for problem, holds in (
            ("somebody did not exit with 0", server_code == 0 and set(codes) == {0}),
            ("the budget was not spent to the commit", late["commits"] == sum(counts) == arguments.commits),
            (f"Jain's index is below {JAIN_AT_LEAST}", late["jain_index"] >= JAIN_AT_LEAST),
            ("the server's memory grew by more than 5 MiB", growth <= MEMORY_GROWTH_AT_MOST),
        )
        if not holds
    ]
    sys.exit("; ".join(failed) or 0)


if __name__ == "__main__":
    main()
