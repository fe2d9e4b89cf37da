"""Identify this machine and this client."""

import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Linux has it. Unlike the host name, it is the same in all containers of a machine.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def agent() -> str:
    """Return the client's name and version, as JoinRequest.agent has them."""
    try:
        return f"gemps-python/{version('gemps')}"
    except PackageNotFoundError:
        return "gemps-python"


def this_host(boot_id: Path = BOOT_ID) -> str:
    """Return a text that identifies this machine: the kernel's boot id, or the host name where there is none."""
    try:
        found = boot_id.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    return found or socket.gethostname()
