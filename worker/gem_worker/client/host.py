"""Which machine this is, for the server that counts ranks on a host by it."""

import socket
from pathlib import Path

# Linux: drawn by the kernel when it starts (proc_sys_kernel(5)). All containers on a machine see the same one, where
# each has a host name of its own; and they share the machine's GPUs.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_host(boot_id: Path = BOOT_ID) -> str:
    """Return an id that processes on one machine share, in containers too: the kernel's boot id, else the host name."""
    try:
        found = boot_id.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    return found or socket.gethostname()
