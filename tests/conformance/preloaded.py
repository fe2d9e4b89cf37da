"""Candidates that are forked from a process with what they import: imports are most of what a scenario takes.

Whoever plays one starts a process as for any other candidate. That one hands its environment and its output to the
process that waits here, has a fork of that run the script as `python SCRIPT` does, and ends as the fork ends; when it
is killed, so is the fork, and SIGTERM is handed on. Nothing but imported modules is there before a scenario begins.
"""

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LENGTH_BYTES = 8


@contextmanager
def preloaded(folder: Path, *modules: str) -> Iterator[list[str]]:
    """Yield the command that runs a script, which is to be added, as long as the block lasts.

    Args:
        folder: for a socket.
        modules: what is imported before.
    """
    command = [sys.executable, str(Path(__file__))]
    address = str(folder / "preloaded")
    with subprocess.Popen([*command, "fork", address, *modules], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield [*command, "run", address]
        finally:
            process.kill()


def run(address: str, script: str) -> int:
    """The candidate, as others see it; the exit status of the fork."""
    with socket.socket(socket.AF_UNIX) as connection:
        signal.signal(signal.SIGTERM, lambda *_: connection.sendall(b"T"))
        connection.connect(address)
        start = json.dumps({"script": script, "environment": dict(os.environ)}).encode()
        socket.send_fds(connection, [len(start).to_bytes(_LENGTH_BYTES)], [0, 1, 2])
        connection.sendall(start)
        return int(connection.makefile().read() or 1)


def fork(address: str, modules: list[str]) -> str:
    """Fork for each connection. Returns in the forks alone, which are the candidates: the script."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        for module in modules:
            importlib.import_module(module)
        print("listening", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork():
                    continue
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return guarded(connection)


def guarded(connection: socket.socket) -> str:
    """Fork once more: the fork returns as the candidate, and its guard tells how it ended, or ends it."""
    length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, 3)
    with connection.makefile("rb") as reader:
        start = json.loads(reader.read(int.from_bytes(length)))
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(alive)
        os.environ.clear()
        os.environ.update(start["environment"])
        return str(start["script"])
    os.close(held)
    while True:
        select.select([connection, alive], [], [])  # a word of the one who asked, or its end, or the child's
        if select.select([alive], [], [], 0)[0]:
            break
        if connection.recv(1):
            os.kill(child, signal.SIGTERM)
        else:
            os.kill(child, signal.SIGKILL)
            break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    if what == "run":
        sys.exit(run(place, rest[0]))
    path = fork(place, rest)
    sys.argv, sys.path[0] = [path], str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")
