"""What was measured where: the machine and the versions, for the file. No names of hosts or people."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.environments import PEERS, REPOSITORY

OURS = ("gemps", "torch", "numpy", "numba", "grpcio", "protobuf")
PEERS_PACKAGES = ("ray", "flwr", "grpcio")


def machine() -> dict[str, Any]:
    """Processor, memory, kernel."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    """Of gemps and everybody else."""
    found = {"python": platform.python_version(), "commit": _said("git", "-C", str(REPOSITORY), "rev-parse", "HEAD")}
    found |= {name: metadata.version(name) for name in OURS}
    folders = [str(folder) for folder in PEERS.glob("lib/python*/site-packages")]
    for package in metadata.distributions(path=folders):
        if package.name.lower() in PEERS_PACKAGES:
            found.setdefault(f"{package.name.lower()} (peers)", package.version)
    found["grpc++"] = _said("pkg-config", "--modversion", "grpc++")
    return {name: version for name, version in found.items() if version}


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
