"""Run environment, read without imports."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from gem_worker.client.operating_system import usable_processors

PACKAGES = ("gemps", "torch", "torchvision", "numpy", "numba", "grpcio", "protobuf", "scikit-learn")


def versions() -> dict[str, str]:
    """Installed versions."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Checkout's commit, or None."""
    return _output("git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def hardware() -> dict[str, Any]:
    """Machine's hardware."""
    gpus = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": usable_processors(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus.splitlines() if gpus else [],
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
