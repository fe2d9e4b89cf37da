"""Checks for a GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gem_cli.doctor.check_result import CheckResult, ok, problem, warning

# Subprocess, since a damaged torch may crash.
_PROBE = """
import json, torch
found = {"built_for": torch.version.cuda or torch.version.hip, "devices": [], "why": ""}
try:
    if torch.cuda.is_available():
        found["devices"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    elif found["built_for"]:
        torch.cuda.init()
except Exception as error:
    found["why"] = str(error).strip().splitlines()[0]
found["mps"] = torch.backends.mps.is_available()
import torchvision
print(json.dumps(found))
"""
_PROBE_SECONDS = 30.0
_NVIDIA = "0x10de"  # PCI vendor ID
_DISPLAY = "0x03"  # PCI display class; data centre GPUs: 0x0302


@dataclass(frozen=True, slots=True)
class Hardware:
    """NVIDIA GPUs on PCI, driver, device files."""

    cards: int
    driver: str
    devices: int
    hidden: bool  # by CUDA_VISIBLE_DEVICES


def inspect_hardware(root: Path = Path("/")) -> Hardware:
    """Inspect Linux's /sys, /proc and /dev."""
    cards = sum(
        _read_text(one / "vendor") == _NVIDIA and _read_text(one / "class").startswith(_DISPLAY)
        for one in (root / "sys/bus/pci/devices").glob("*")
    )
    driver = _read_text(root / "proc/driver/nvidia/version")
    words = [word for word in driver.split() if word[:1].isdigit() and "." in word]
    devices = sum(1 for _ in (root / "dev").glob("nvidia[0-9]*"))
    return Hardware(cards, words[0] if words else "", devices, os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"))


def probe_torch(seconds: float = _PROBE_SECONDS) -> Mapping[str, Any] | str | None:
    """What torch sees, its import error; None: timeout."""
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"importing it ended the process with {done.returncode}"


def check_device(probe: Mapping[str, Any] | str | None, hardware: Hardware, device: str) -> CheckResult:
    """Judge the worker's `device` setting."""
    if probe is None:
        return warning(
            "gpu",
            f"not checked: importing torch takes more than {_PROBE_SECONDS:g} s. This machine is busy (load "
            f"{psutil.getloadavg()[0]:.1f} on {os.cpu_count()} processors), or its disk is slow: run gemps doctor "
            "again when there is less to do. Nothing shows that torch is broken",
        )
    if isinstance(probe, str):
        return problem("gpu", f"torch does not work: {probe}; pip install --force-reinstall torch torchvision")
    devices, built_for = list(probe["devices"]), probe["built_for"]
    if devices:
        return ok("gpu", f"{len(devices)} for CUDA {built_for}: {', '.join(devices)}")
    if device == "mps" or (probe.get("mps") and device == "auto"):
        if probe.get("mps"):
            return ok("gpu", "Apple's, with --device mps")
        return problem("gpu", "--device mps: there is no such device here; use --device auto")
    why = _why_none(probe, hardware)
    if device.startswith("cuda"):
        reason = why or "this machine has none"
        return problem("gpu", f"--device {device}, and torch sees none: {reason}; or use --device auto or cpu")
    if device == "cpu":
        return ok("gpu", "none needed: --device cpu")
    if why is None:
        built = f"torch is built for CUDA {built_for}" if built_for else "torch is built without CUDA"
        return ok("gpu", f"none in this machine, workers compute on its CPU ({built})")
    return (warning if hardware.hidden else problem)("gpu", why)


def _why_none(probe: Mapping[str, Any], hardware: Hardware) -> str | None:
    if not (hardware.cards or hardware.driver or hardware.devices):
        return None
    if hardware.hidden:
        return "CUDA_VISIBLE_DEVICES hides every GPU: unset it, or name one, as CUDA_VISIBLE_DEVICES=0"
    built_for = probe["built_for"]
    if built_for is None:
        return (
            "this machine has one, but torch was built without CUDA: pip install --force-reinstall torch torchvision "
            "from where pytorch.org says"
        )
    if not hardware.driver:
        return (
            f"this machine has one and torch is built for CUDA {built_for}, but NVIDIA's driver is not loaded: install "
            "it; nvidia-smi must list the GPU"
        )
    if not hardware.devices:
        return "this machine has one, but this container does not: start it with GPUs (docker/compose.gpu.yml)"
    said = probe["why"] or "it does not say why"
    return (
        f"torch cannot use the one that is here ({said}): is driver {hardware.driver} new enough for CUDA {built_for}?"
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
