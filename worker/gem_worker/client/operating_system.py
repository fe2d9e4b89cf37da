"""What Windows or macOS lack, with fallbacks: no other module of the worker and the command uses such names.

tests/structure/test_operating_systems.py has the names.
"""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# memfd, SOCK_SEQPACKET, SCM_RIGHTS; elsewhere deltas and parameters go over TCP.
HAS_SHARED_MEMORY = sys.platform == "linux"
# Elsewhere children outlive a killed parent.
HAS_PARENT_SIGNAL = sys.platform == "linux"
# No server, no Unix sockets, no terminal modes.
IS_WINDOWS = sys.platform == "win32"
KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL

# Missing from Python 3.11's fcntl.
_GET_SEALS, _SEAL_SHRINK = 1034, 0x2
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def usable_processors() -> int:
    """Return those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def packet_socket() -> socket.socket:
    """Make a Unix socket that keeps message borders."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive_descriptors(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive a message with at most `most` file descriptors."""
    data, descriptors, _, _ = socket.recv_fds(connection, size, most)
    return data, list(descriptors)


def keeps_its_size(descriptor: int) -> bool:
    """Return whether it is sealed: truncation would cause SIGBUS."""
    import fcntl

    try:
        return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK)
    except OSError:  # no memfd
        return False


def limit_unacknowledged(connection: socket.socket, seconds: float) -> None:
    """Break a TCP connection whose peer acknowledges nothing; elsewhere the system's limit holds."""
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def send_buffers(connection: socket.socket, head: bytes, data: "memoryview | bytes | bytearray") -> None:
    """Send both, in one system call if possible."""
    if sys.platform == "win32":
        connection.sendall(head)
        connection.sendall(data)
    elif (sent := connection.sendmsg((head, data)) - len(head)) < len(data):
        connection.sendall(head[sent:] if sent < 0 else b"")
        connection.sendall(memoryview(data)[max(sent, 0) :])


def replace_durably(part: Path, target: Path) -> None:
    """Rename; on POSIX systems the new name survives a crash of the machine."""
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
    """Set an open file's permissions; Windows inherits its folder's."""
    if sys.platform != "win32":
        os.fchmod(descriptor, mode)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a process group. Raises ProcessLookupError."""
    os.killpg(pid, number)


def end_with_parent(number: int) -> None:
    """Let this process get the signal when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def terminal_signals() -> tuple[signal.Signals, signal.Signals]:
    """Return those of a changed size and of Ctrl-Z."""
    return signal.SIGWINCH, signal.SIGTSTP


def stop_this_process() -> None:
    """Stop until SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def wake_pipe() -> tuple[int, int]:
    """Make a pipe that blocks neither end."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def enter_cbreak(terminal: int) -> list[Any]:
    """Deliver keys at once, without echo; return the modes before."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    return before


def restore_modes(terminal: int, modes: list[Any]) -> None:
    """Restore what `enter_cbreak` returned, if the terminal is still there."""
    import termios

    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
    except termios.error:
        return
