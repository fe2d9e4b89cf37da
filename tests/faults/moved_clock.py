"""A wrong date for chosen processes; the machine's own clock is never touched."""

import atexit
import functools
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("moved_clock.c")
DAY = 86_400


class MovedClock:
    """A clock that is right until `move`; processes that were started with `env` go by it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.seconds = 0
        self.move(0)
        self.env = {"LD_PRELOAD": str(_library()), "MOVED_CLOCK": str(file)}

    def move(self, seconds: int) -> None:
        """By so many seconds from the right time, from now on."""
        self.seconds = seconds
        # Written in place: the processes have mapped it.
        with self._file.open("r+b" if self._file.exists() else "wb", buffering=0) as stream:
            stream.write(struct.pack("=q", seconds))


@functools.cache
def _library() -> Path:
    """The source, compiled; a skip that says why where that cannot be."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("moving a process's clock needs Linux and a C compiler (cc)")
    folder = tempfile.mkdtemp(prefix="gemps-clock-")
    atexit.register(shutil.rmtree, folder)
    library = Path(folder) / "moved_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", library, SOURCE], check=True)
    return library
