"""The talk between the harness and the processes of a run: JSON lines over a Unix socket.

A process says hello (role, rank), then, as a server, `ready` with its address, as a worker, `warm`; the harness answers
all workers with one window of time, they report, and when all have, the harness lets them go with `end`.
"""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

WARM_UP_STEPS = 2


class Line:
    """One end of the talk. Not thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rwb")

    def say(self, **message: object) -> None:
        """Send a message. Raises OSError when the other end is gone."""
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        """The next message. Raises EOFError when the other end is gone, TimeoutError when the connection's is over."""
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the other end is gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def wait_at_most(self, seconds: float | None) -> None:
        """What `hear` waits."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._connection.close()


class ProcessDesk:
    """`peers.interface.Desk`, in a process of a contender."""

    def __init__(self, path: str, role: str, rank: int) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self.line = Line(connection)
        self.line.say(role=role, rank=rank)
        self._parts: dict[str, float] = {}
        self._commits = 0

    def ready(self, address: str) -> None:
        """See Desk."""
        self.line.say(ready=address)

    def wait_for_end(self) -> None:
        """See Desk."""
        message = self.line.hear()
        assert "end" in message, message

    def start(self) -> tuple[float, float]:
        """See Desk."""
        self.line.say(warm=True)
        start, end = self.line.hear()["window"]
        return float(start), float(end)

    def finish(self, took: list[float], began: float) -> None:
        """See Desk."""
        self.line.say(took=took, began=began)
        self.wait_for_end()

    def took_part_by_part(self, seconds: dict[str, float], commits: int) -> None:
        """See Desk."""
        self._parts, self._commits = seconds, commits

    def say_ended(self) -> None:
        """The last word, when all went well."""
        self.line.say(ended=True, parts=self._parts, commits=self._commits)

    def pace(self, step: Callable[[], None]) -> None:
        """See Desk."""
        for _ in range(WARM_UP_STEPS):
            step()
        start, end = self.start()
        time.sleep(max(0.0, start - time.monotonic()))
        took: list[float] = []
        began = before = time.monotonic()
        while not took or before < end:
            step()
            after = time.monotonic()
            took.append(after - before)
            before = after
        self.finish(took, began)
