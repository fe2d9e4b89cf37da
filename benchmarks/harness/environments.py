"""What contenders need beside gemps' own environment: an interpreter with Ray and Flower, a program in C++."""

import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.peers.interface import Home

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# `make bench` makes it, beside gemps' own packages: Flower asks for other versions of some of them.
PEERS = Path(sys.prefix) / "peers"
ECHO = REPOSITORY / "build" / "bench" / "grpc_echo"
ECHO_SOURCE = REPOSITORY / "benchmarks" / "peers" / "grpc_echo.cc"


def interpreter(home: Home) -> Path:
    """The Python that runs contenders of this home."""
    return Path(sys.executable) if home == "gemps" else PEERS / "bin" / "python"


def has_peer(package: str) -> bool:
    """Whether the peers' environment has it."""
    return any(PEERS.glob(f"lib/python*/site-packages/{package}/__init__.py"))


@cache
def build_echo() -> str | None:
    """Build the echo in C++ unless it is there; None, or why that is not possible, with the fix."""
    if ECHO.exists() and ECHO.stat().st_mtime >= ECHO_SOURCE.stat().st_mtime:
        return None
    fix = "apt-get install g++ pkg-config libgrpc++-dev"
    try:
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "grpc++"], check=True, capture_output=True, text=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return f"gRPC's C++ library is not installed: {fix}"
    ECHO.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-O2", "-std=c++17", "-o", str(ECHO), str(ECHO_SOURCE), *flags]
    try:
        built = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return f"there is no C++ compiler: {fix}"
    if built.returncode:
        return f"{ECHO_SOURCE.name} does not compile: {built.stderr.strip().splitlines()[0]}"
    return None
