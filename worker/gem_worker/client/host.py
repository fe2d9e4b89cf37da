"""Identify this machine and this client."""

import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Linux; the same in all containers of a machine, unlike host names.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def agent() -> str:
    """The client's name and version."""
    try:
        return f"gemps-python/{version('gemps')}"
    except PackageNotFoundError:
        return "gemps-python"


def this_host(boot_id: Path = BOOT_ID) -> str:
    """The boot id, else the host name."""
    try:
        found = boot_id.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    return found or socket.gethostname()
