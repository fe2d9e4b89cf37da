"""What a contender is: everything that the harness knows about gemps, a peer, or a limit.

A contender has one server process (limits of memory have none) and `case.workers` worker processes. One *step* of a
worker is the same for all: a float32 gradient that lies in the worker's memory reaches the server times -eta, whichever
of the two multiplies, and when the step ends **the worker's own memory holds fresh float32 parameters of the whole
model**. Nothing else is computed. What a contender does beyond or short of that, its `does` says.

This file and those of the peers are imported by the interpreter of the peers, too, which may lack gemps' packages:
import those, and heavy ones, inside functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

FLOAT32_BYTES = 4
MB = 1_000_000
# What the gradient is multiplied with in each step: gemps' default.
ETA = 0.05
# Anonymous memory of one process beside the model's vectors, rounded up: of a worker, which is forked, what it does not
# have in common with the others.
WORKER_PROCESS = 100 * MB
SERVER_PROCESS = 250 * MB
# glibc gives freed blocks that are larger than this back at once; smaller ones stay with their threads.
LARGEST_KEPT = 32 * 1024 * 1024

Kind = Literal["gemps", "peer", "limit"]
# Which interpreter runs it: that of gemps, or that of the peers whose requirements differ (environments.py).
Home = Literal["gemps", "peers"]


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """A size of the model, in parameters, and a number of workers."""

    parameters: int
    workers: int

    @property
    def vector(self) -> int:
        """Bytes of all parameters as float32."""
        return FLOAT32_BYTES * self.parameters

    def __str__(self) -> str:
        return f"P = {self.parameters:,}, {self.workers} workers"


class Desk(Protocol):
    """What a process of a contender can say to the harness, and hear from it."""

    def ready(self, address: str) -> None:
        """A server: workers can start, and find it there."""

    def wait_for_end(self) -> None:
        """A server: return when all workers have left."""

    def pace(self, step: Callable[[], None]) -> None:
        """A worker: make steps as the harness wants them: to warm up, then, together with the others, timed."""

    def start(self) -> tuple[float, float]:
        """In place of `pace`, for a worker that times itself: say that it is warm; returns when to start and end.

        Both in seconds of the monotonic clock (the same in all processes of a machine). No step may begin at or after
        the end; one that has begun is finished.
        """

    def finish(self, took: list[float], began: float) -> None:
        """After `start`: the seconds of each step, and when the first began; returns when all workers have finished."""

    def took_part_by_part(self, seconds: dict[str, float], commits: int) -> None:
        """Of a contender that looks into itself: the processor time, by part, that so many commits took this process.

        To be called before the process is over. Parts of all processes go into one table, so their names say which
        side they are of: "server: ..." or "worker: ...".
        """


class Contender(ABC):
    """One way to run a parameter server. Instances are made by `peers.CONTENDERS`; they hold no state of a run."""

    name: str  # as on the command line
    title: str  # as in tables and pictures
    does: str  # a sentence: what is not obvious from the title
    kind: ClassVar[Kind] = "peer"
    home: ClassVar[Home] = "gemps"
    preload: ClassVar[tuple[str, ...]] = ("torch",)  # imported once, before processes are forked
    updates: ClassVar[bool] = True  # workers get parameters that the server has changed; checked after each run

    def unavailable(self) -> str | None:
        """Why it cannot run on this machine, with the fix; None when it can. Asked in gemps' interpreter."""
        return None

    def unfit(self, case: Case) -> str | None:
        """Why it is not measured in this case; None: it is."""
        return None

    @abstractmethod
    def server_memory(self, case: Case) -> int:
        """Bytes that the server takes, shared memory included; an estimate from above."""

    @abstractmethod
    def worker_memory(self, case: Case) -> int:
        """Bytes that one worker takes."""

    def shared_memory(self, case: Case) -> int:
        """How much of both is in /dev/shm, whose size is limited by itself."""
        return 0

    def memory(self, case: Case) -> int:
        """Bytes that server and workers take together."""
        return self.server_memory(case) + case.workers * self.worker_memory(case)

    def command(self, case: Case, folder: Path) -> list[str] | None:
        """The server as a command of its own, which writes {"address": ...} to folder/ready.json; None: see `serve`."""
        return None

    def serve(self, case: Case, desk: Desk) -> None:
        """Be the server, in a process of its own, until all workers have left."""
        desk.ready("")
        desk.wait_for_end()

    @abstractmethod
    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """Be worker `rank` (from 0)."""
