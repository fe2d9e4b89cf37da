"""Identify this machine."""

import socket
from pathlib import Path

# Linux; the same in all containers of a machine, unlike host names.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_host(boot_id: Path = BOOT_ID) -> str:
    """The boot id, else the host name."""
    try:
        found = boot_id.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    return found or socket.gethostname()
