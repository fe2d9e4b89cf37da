"""A candidate that is forked from a process which has imported PyTorch: the import is most of what a scenario takes.

Whoever plays it starts a process as for any other candidate. That one hands its environment and its output to the
process that waits here, has a fork of that run the script as `python SCRIPT` does, and ends as the fork ends; when it
is killed, so is the fork. Nothing but PyTorch is there before a scenario begins.
"""

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
def preloaded(script: Path, folder: Path) -> Iterator[list[str]]:
    """The command of a candidate that runs `script`, as long as the block lasts.

    Args:
        script: what `python SCRIPT` would run.
        folder: for a socket.
    """
    command = [sys.executable, str(Path(__file__))]
    address = str(folder / "preloaded")
    with subprocess.Popen([*command, "fork", address, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield [*command, "run", address]
        finally:
            process.kill()


def run(address: str) -> int:
    """The candidate, as others see it; the exit status of the fork."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        environment = json.dumps(dict(os.environ)).encode()
        socket.send_fds(connection, [len(environment).to_bytes(_LENGTH_BYTES)], [0, 1, 2])
        connection.sendall(environment)
        return int(connection.makefile().read() or 1)


def fork(address: str) -> None:
    """Fork for each connection. Returns in the forks alone: they are the candidates."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("listening", flush=True)
        import torch  # noqa: F401 - this is what the module is for

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork():
                    continue
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                guarded(connection)
                return


def guarded(connection: socket.socket) -> None:
    """Fork once more: the fork returns as the candidate, and its guard tells how it ended, or ends it."""
    length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, 3)
    with connection.makefile("rb") as reader:
        environment = json.loads(reader.read(int.from_bytes(length)))
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(alive)
        os.environ.clear()
        os.environ.update(environment)
        return
    os.close(held)
    select.select([connection, alive], [], [])  # the one who asked is gone, or the child
    if not select.select([alive], [], [], 0)[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


if __name__ == "__main__":
    what, place, *path = sys.argv[1:]
    if what == "run":
        sys.exit(run(place))
    fork(place)
    sys.argv, sys.path[0] = path, str(Path(path[0]).parent)
    runpy.run_path(path[0], run_name="__main__")
