"""A server process, or several shards, for the benchmarks of gemps alone; what `bench.py` starts is the harness's."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    """A server process, and its address."""

    process: "subprocess.Popen[bytes]"
    address: str


@dataclass(frozen=True)
class Place:
    """Where a server runs; `within`: a command that runs the server's, such as `ip netns exec NAME`."""

    host: str
    within: Sequence[str] = ()


LOOPBACK = Place("127.0.0.1")


@contextmanager
def serve(folder: Path, *flags: str, place: Place = LOOPBACK) -> Iterator[Served]:
    """`gemps serve` with these flags on a free port, for as long as the block; its log is in `folder`."""
    with _started(folder, f"--bind={place.host}:0", *flags, within=place.within) as process:
        yield _ready(process, folder)


@contextmanager
def serve_shards(folder: Path, places: Sequence[Place], *flags: str) -> Iterator[list[Served]]:
    """A shard with these flags at each place, the primary first; as `serve`. {shard} in a flag: its number."""
    primary = f"{places[0].host}:{free_port()}"
    with ExitStack() as stack:
        started = []
        for index, place in reversed(list(enumerate(places))):  # the primary is stopped first: the others wait for it
            bind = [f"--bind={place.host}:0", f"--primary={primary}"] if index else [f"--bind={primary}"]
            own = folder / f"shard-{index}"
            own.mkdir(exist_ok=True)
            own_flags = [flag.format(shard=index) for flag in flags]
            process = stack.enter_context(
                _started(own, f"--shard={index}/{len(places)}", *bind, *own_flags, within=place.within)
            )
            started.append((process, own))
        yield [_ready(process, own) for process, own in reversed(started)]


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _started(folder: Path, *flags: str, within: Sequence[str] = ()) -> "Iterator[subprocess.Popen[bytes]]":
    ready, log = folder / "ready.json", folder / "log"
    command = [*within, sys.executable, "-m", "gem_cli", "serve", f"--ready-file={ready}", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _ready(process: "subprocess.Popen[bytes]", folder: Path) -> Served:
    ready = folder / "ready.json"
    while not ready.exists():
        if process.poll() is not None:
            sys.exit((folder / "log").read_text(encoding="utf-8"))
        time.sleep(0.05)
    return Served(process, json.loads(ready.read_text(encoding="utf-8"))["address"])
