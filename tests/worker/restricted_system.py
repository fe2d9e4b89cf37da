"""Runs a `gemps` command, or a script, without what the standard library lacks on Windows or on macOS.

`python restricted_system.py win32|darwin gemps ARG... | SCRIPT.py ARG...`. Modules cannot be imported, names are
deleted, and sys.platform is the system's. Libraries are imported before: they are built for Linux. os.name stays, since
pathlib would make Windows paths.
"""

import importlib
import re
import runpy
import socket
import sys
from importlib.machinery import ModuleSpec
from typing import Any

# These commands end before they need PyTorch, whose import takes seconds.
WITHOUT_TORCH = {"serve", "status", "top", "train"}
LIBRARIES = (
    "asyncio", "awscrt.checksums", "concurrent.futures", "google.protobuf.json_format", "google.rpc.status_pb2", "grpc",
    "multiprocessing", "numpy", "psutil", "pydantic_settings", "rich.console", "rich.live", "rich.table",
    "shutil", "ssl", "structlog", "subprocess", "tempfile", "typer",
)  # fmt: skip

TORCH = ("safetensors.torch", "torch.nn", "torch.utils.data")

MISSING_MODULES = {
    "win32": {
        "crypt", "curses", "fcntl", "grp", "nis", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios",
        "tty", "uvloop",
    },
    "darwin": {"spwd"},
}  # fmt: skip

# Of Python 3.11.
_NOT_ON_MACOS = {
    "os": r"copy_file_range|eventfd\w*|fdatasync|getres[ug]id|memfd_create|MFD_\w+|O_(DIRECT|PATH|TMPFILE)|pidfd_open"
    r"|posix_fa(dvise|llocate)|sched_([gs]etaffinity|[gs]etparam|[gs]etscheduler|param|rr_get_interval)|setres[ug]id"
    r"|splice|[a-z]+xattr",
    "select": r"epoll|EPOLL\w*",
    "signal": r"pidfd_send_signal|SIG(CLD|POLL|PWR|RT\w+|STKFLT)|sigtimedwait|sigwaitinfo",
    "socket": r"MSG_CMSG_CLOEXEC|SCM_CREDENTIALS|SO_(BINDTODEVICE|PEERCRED)|SOCK_(CLOEXEC|NONBLOCK|SEQPACKET)"
    r"|TCP_(CORK|QUICKACK|USER_TIMEOUT)",
    "socket.socket": r"sendmsg_afalg",
}
MISSING_NAMES = {
    "darwin": _NOT_ON_MACOS,
    "win32": {
        "mmap": r"(MADV|MAP|PROT)_\w+",
        "os": rf"{_NOT_ON_MACOS['os']}|[fl]?chown|chroot|confstr|fchdir|fchmod|fork|forkpty|fpathconf|f?statvfs"
        r"|[gs]ete?[ug]id|[gs]et(_blocking|groups|pgid|pgrp|priority|re[ug]id|sid)|getloadavg|killpg|lockf|mkfifo|mknod"
        r"|nice|O_(CLOEXEC|DIRECTORY|DSYNC|NOCTTY|NOFOLLOW|NONBLOCK|SYNC)|openpty|pathconf|posix_\w+|p(read|write)v?"
        r"|readv|register_at_fork|sched_\w+|sendfile|sync|sysconf|tc[gs]etpgrp|ttyname|uname|wait|wait[34]|waitid|writev",
        "select": rf"{_NOT_ON_MACOS['select']}|poll|POLL\w*",
        "signal": rf"{_NOT_ON_MACOS['signal']}|alarm|ITIMER_\w+|pause|pthread_\w+|[gs]etitimer|siginterrupt|sigpending"
        r"|sigwait|SIG(ALRM|BUS|CHLD|CONT|HUP|IO|IOT|KILL|PIPE|PROF|QUIT|STOP|SYS|TRAP|TSTP|TTIN|TTOU|URG|USR[12]"
        r"|VTALRM|WINCH|XCPU|XFSZ)",
        "socket": rf"{_NOT_ON_MACOS['socket']}|AF_UNIX|CMSG_\w+|MSG_(DONTWAIT|NOSIGNAL)|(recv|send)_fds|SCM_\w+"
        r"|SO_REUSEPORT",
        "socket.socket": r"recvmsg\w*|sendmsg\w*",
        "time": r"clock_\w+|CLOCK_\w+|pthread_getcpuclockid|tzset",
    },
}


class MissingModules:
    """Finds nothing: these modules do not exist."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


class MissingMethod:
    """Hides an inherited method."""

    def __get__(self, instance: object, owner: type) -> object:
        raise AttributeError


def restrict(system: str, libraries: tuple[str, ...]) -> None:
    """Remove it all, for good."""
    for library in libraries:
        importlib.import_module(library)
    assert not any(name.partition(".")[0] in ("gem_core", "gem_worker", "gem_cli", "gemps") for name in sys.modules)
    for name in MISSING_MODULES[system]:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, MissingModules(MISSING_MODULES[system]))
    for name, pattern in MISSING_NAMES[system].items():
        owner: Any = socket.socket if name == "socket.socket" else importlib.import_module(name)
        for attribute in [one for one in dir(owner) if re.fullmatch(pattern, one)]:
            if owner is socket.socket:
                setattr(owner, attribute, MissingMethod())
            else:
                delattr(owner, attribute)
    sys.platform = system


if __name__ == "__main__":
    program = sys.argv[2]
    needs_torch = program != "gemps" or sys.argv[3] not in WITHOUT_TORCH
    restrict(sys.argv[1], LIBRARIES + TORCH * needs_torch)
    sys.argv = sys.argv[2:]
    if program == "gemps":
        importlib.import_module("gem_cli.main").main()
    else:
        runpy.run_path(program, run_name="__main__")
