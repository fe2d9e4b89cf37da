"""What Windows or macOS lack, named here alone (tests/structure/test_operating_systems.py)."""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# Elsewhere TCP.
HAS_SHARED_MEMORY = sys.platform == "linux"
# Elsewhere children outlive a killed parent.
HAS_PARENT_SIGNAL = sys.platform == "linux"
IS_WINDOWS = sys.platform == "win32"
CHILD_ENDED = None if sys.platform == "win32" else signal.SIGCHLD
KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL

# Missing from Python 3.11's fcntl.
_GET_SEALS, _SEAL_SHRINK = 1034, 0x2
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_signals() -> tuple[signal.Signals, ...]:
    """Signals that ask this process to end: SIGTERM, and SIGHUP, unless the process ignores it as under nohup."""
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return signal.SIGTERM, signal.SIGHUP


class Terminals:
    """Knows which of the standard streams are terminals, and replaces them when their terminal closes.

    A write to a closed terminal fails with EIO. It must not keep a process from ending cleanly, so `replace_closed`,
    which a handler of SIGHUP calls, puts the null device in the place of the closed ones.
    """

    def __init__(self) -> None:
        self._streams = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]

    def replace_closed(self) -> None:
        """Replace what was a terminal and is none any more; safe in a signal handler."""
        closed = [descriptor for descriptor in self._streams if not os.isatty(descriptor)]
        if closed:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in closed:
                os.dup2(null, descriptor)
            os.close(null)


def usable_processors() -> int:
    """Count them."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def packet_socket() -> socket.socket:
    """Make a SOCK_SEQPACKET."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive_descriptors(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """(message, descriptors)."""
    data, descriptors, _, _ = socket.recv_fds(connection, size, most)
    return data, list(descriptors)


def keeps_its_size(descriptor: int) -> bool:
    """Whether it is sealed: truncation would cause SIGBUS."""
    import fcntl

    try:
        return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK)
    except OSError:  # no memfd
        return False


def limit_silence(connection: socket.socket, seconds: int) -> None:
    """Break a connection whose peer acknowledges neither data nor probes for so long; only on Linux."""
    if sys.platform == "linux":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, seconds // 2))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)


def send_buffers(connection: socket.socket, head: bytes, data: "memoryview | bytes | bytearray") -> None:
    """Send both, if possible at once."""
    if sys.platform == "win32":
        connection.sendall(b"".join((head, data)))
    elif (sent := connection.sendmsg((head, data)) - len(head)) < len(data):
        connection.sendall(head[sent:] if sent < 0 else b"")
        connection.sendall(memoryview(data)[max(sent, 0) :])


def replace_durably(part: Path, target: Path) -> None:
    """Rename durably."""
    _sync(part, os.O_RDWR)
    part.replace(target)
    if sys.platform != "win32":
        _sync(target.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """See os.fchmod; Windows inherits permissions."""
    if sys.platform != "win32":
        os.fchmod(descriptor, mode)


def signal_group(pid: int, number: signal.Signals) -> None:
    """See os.killpg."""
    os.killpg(pid, number)


def end_with_parent(number: int) -> None:
    """Receive the signal when the parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def terminal_signals() -> tuple[signal.Signals, signal.Signals]:
    """Those of resizing and Ctrl-Z."""
    return signal.SIGWINCH, signal.SIGTSTP


def stop_this_process() -> None:
    """See SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


def wake_pipe() -> tuple[int, int]:
    """Make a non-blocking pipe."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def enter_cbreak(terminal: int) -> list[Any]:
    """Set cbreak mode; return the old modes."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    return before


def restore_modes(terminal: int, modes: list[Any]) -> None:
    """Restore modes."""
    import termios

    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
    except termios.error:
        return
