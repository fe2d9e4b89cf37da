"""A server process for the benchmarks of gemps alone; what `bench.py` starts is the harness's."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    """A server process, and its address."""

    process: "subprocess.Popen[bytes]"
    address: str


@contextmanager
def serve(folder: Path, *flags: str, host: str = "127.0.0.1", within: Sequence[str] = ()) -> Iterator[Served]:
    """`gemps serve` with these flags on a free port, for as long as the block; its log is in `folder`.

    `within`: a command that runs the server's, such as `ip netns exec NAME`.
    """
    ready, log = folder / "ready.json", folder / "log"
    command = [*within, sys.executable, "-m", "gem_cli", "serve", f"--bind={host}:0", f"--ready-file={ready}", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while not ready.exists():
            if process.poll() is not None:
                sys.exit(log.read_text(encoding="utf-8"))
            time.sleep(0.05)
        yield Served(process, json.loads(ready.read_text(encoding="utf-8"))["address"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
