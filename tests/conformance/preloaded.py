"""Starts candidates quickly, by forking a process that has imported their modules already.

Importing takes most of the time of a scenario. Three processes take part:

- The server (`serve_forks`) imports the modules once, listens at a socket, and forks for each connection.
- The kit starts a client (`run`) as if it were the candidate. The client sends its environment and its open files to
  the server, waits for the candidate, and exits with the same status. It passes SIGTERM on.
- The fork of the server (`run_guarded`) forks once more. The child runs the script as `python SCRIPT` does, and is the
  candidate. Its parent, the guard, reports the exit status to the client, and kills the child if the client dies.

Except for the imported modules, a candidate begins with the state of a new process.
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
    """Run a server for the time of the block, and yield a command that runs a script when its path is appended.

    Args:
        folder: where the socket of the server is created.
        modules: the names of the modules that the server imports.
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
    """Have the server at `address` run a script, and return its exit status; 1 if the server or the guard has died."""
    with socket.socket(socket.AF_UNIX) as connection:
        signal.signal(signal.SIGTERM, lambda *_: connection.sendall(b"T"))
        connection.connect(address)
        start = json.dumps({"script": script, "environment": dict(os.environ)}).encode()
        socket.send_fds(connection, [len(start).to_bytes(_LENGTH_BYTES)], [0, 1, 2])
        connection.sendall(start)
        return int(connection.makefile().read() or 1)


def serve_forks(address: str, modules: list[str]) -> str:
    """Listen at `address`, and fork for each connection.

    Never returns in the server. In each candidate it returns the path of the script to be run.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        for module in modules:
            importlib.import_module(module)
        print("listening", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the guards are reaped automatically
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork():
                    continue
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return run_guarded(connection)


def run_guarded(connection: socket.socket) -> str:
    """Fork once more. Returns the path of the script in the child, which is the candidate; the parent guards it.

    The guard sends SIGTERM on, reports the exit status to the client, and kills the child if the client dies.
    """
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
        select.select([connection, alive], [], [])  # until the client writes or dies, or the child ends
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
    path = serve_forks(place, rest)
    sys.argv, sys.path[0] = [path], str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")
