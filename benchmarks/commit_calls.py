"""Python calls, source files of gemps and processor time that one commit takes, of worker and server together.

    python -m benchmarks.commit_calls [--parameters 2048 4194304] [--transports lane grpc shared-memory] [--list 20]

The worker and the server run in this process, each in its own threads. A profiler hook on all threads counts the calls:
each "call" event is a call of a Python function, or a generator or coroutine that is resumed. It does not count calls
of C functions. The table has the calls of gemps' own functions, and all calls, with those of asyncio, NumPy and others.
Each figure is the median of the commits, so that a heartbeat or a tick of the server that falls into one of them does
not matter; a file counts if at least half of the commits run through it. Processor time is taken from a second pair of
worker and server, without the hook.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import gem_server
import gem_worker
import gemps
import numpy as np
import uvloop
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gem_worker.client import Client, ClientSettings

import gem_core
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

TRANSPORTS = ("lane", "grpc", "shared-memory")
SIZES = (2_048, 4_194_304)
SOURCES = tuple(str(Path(package.__file__ or "").parent) for package in (gem_core, gem_server, gem_worker, gemps))
# The first ones open the stream and fill caches.
WARM_UP_COMMITS = 5


class CallCounter:
    """Counts calls in all threads that start after `install`, by file and function."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def install(self) -> None:
        """Set the hook in this thread and in those to come."""
        threading.setprofile(self._count)
        sys.setprofile(self._count)

    def remove(self) -> None:
        """Unset the hook; threads that have it keep it."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # it takes None

    def take(self) -> Counter[tuple[str, str]]:
        """Return what was counted since the last call."""
        taken, self.calls = self.calls, Counter()
        return taken

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            self.calls[code.co_filename, code.co_qualname] += 1


@contextmanager
def committing(parameters: int, transport: str) -> Iterator[tuple[Client, memoryview, memoryview]]:
    """A client that is ready to commit to a server in this process, a delta, and where the parameters go."""
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    held = memoryview(bytearray(4 * parameters))
    delta = memoryview(np.random.default_rng(0).normal(scale=1e-6, size=parameters).astype(np.float32).tobytes())
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()
    with tempfile.TemporaryDirectory(prefix="gemps-calls-") as folder:
        places = Path(folder) / "socket" if transport == "shared-memory" else None
        server = Server(ServerSettings(bind="127.0.0.1:0", shared_memory_socket=places))
        port = asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        settings = ClientSettings(lane=transport != "grpc", shared_memory=transport == "shared-memory")
        with Client(f"127.0.0.1:{port}", worker_name="worker", layout=layout, settings=settings) as client:
            if not client.join().has_parameters:
                client.initialize(held)
            client.pull(held)
            for _ in range(WARM_UP_COMMITS):
                client.commit(delta, held)
            yield client, delta, held
            client.leave("done")
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Counted(NamedTuple):
    """What commits called: medians of a commit, and all commits' calls by file and function."""

    calls: int
    own_calls: int
    files: set[str]
    by_function: Counter[tuple[str, str]]


def count_calls(parameters: int, transport: str, commits: int) -> Counted:
    """Return what each of `commits` commits calls."""
    counter = CallCounter()
    counter.install()
    try:
        with committing(parameters, transport) as (client, delta, held):
            counter.take()
            taken = []
            for _ in range(commits):
                client.commit(delta, held)
                taken.append(counter.take())
    finally:
        counter.remove()
    own = [{key: count for key, count in one.items() if key[0].startswith(SOURCES)} for one in taken]
    by_file = Counter(file for one in own for file in {file for file, _ in one})
    return Counted(
        calls=round(statistics.median(one.total() for one in taken)),
        own_calls=round(statistics.median(sum(one.values()) for one in own)),
        files={file for file, count in by_file.items() if 2 * count >= commits},
        by_function=sum(taken, Counter()),
    )


def processor_seconds(parameters: int, transport: str, commits: int) -> float:
    """Return the processor time of a commit in seconds, both ends together."""
    with committing(parameters, transport) as (client, delta, held):
        before = time.process_time()
        for _ in range(commits):
            client.commit(delta, held)
        return (time.process_time() - before) / commits


def main() -> None:
    """Measure each size over each transport, and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=SIZES)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--commits", type=int, default=50, help="counted for each line")
    parser.add_argument(
        "--list", type=int, default=0, help="also print this many functions, the most called ones first"
    )
    parser.add_argument("--files", action="store_true", help="also print the files")
    arguments = parser.parse_args()
    for parameters in arguments.parameters:
        for transport in arguments.transports:
            counted = count_calls(parameters, transport, arguments.commits)
            milliseconds = 1000 * processor_seconds(parameters, transport, arguments.commits)
            calls = f"{counted.own_calls} calls of gemps, {counted.calls} with libraries"
            figures = f"{calls}, {len(counted.files)} files, {milliseconds:.2f} CPU ms"
            print(f"{parameters:>10,} parameters, {transport}: {figures}", flush=True)
            for (file, function), count in counted.by_function.most_common(arguments.list):
                print(f"{count / arguments.commits:>12.1f}  {Path(file).name}:{function}")
            for file in sorted(counted.files) if arguments.files else ():
                print(f"{'':12}  {'/'.join(Path(file).parts[-3:])}")


if __name__ == "__main__":
    main()
