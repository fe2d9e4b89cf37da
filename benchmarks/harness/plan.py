"""What is run: cases times contenders, less what cannot run here, each with the reason why not."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from gem_server.process_memory import group_limits

from benchmarks.peers.interface import MB, Case, Contender

PARAMETERS = (2_048, 262_144, 4_194_304, 61_100_840)  # the last is AlexNet
WORKERS = (1, 4, 16, 32)
# Left free for everything else on the machine.
RESERVE = 500 * MB
# A window on the largest models is longer by this: a step of theirs takes seconds for some.
LARGE_PARAMETERS = 16_000_000
LARGE_FACTOR = 4
GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """Contenders that are compared in these cases."""

    contenders: tuple[str, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was asked for and is not run."""

    contender: str
    parameters: int
    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, case by case, and what is not."""

    contenders: dict[Case, list[Contender]]
    skipped: list[Skipped]

    @property
    def runs(self) -> int:
        """In one round."""
        return sum(len(contenders) for contenders in self.contenders.values())


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that can be had, in bytes: all, and what of it /dev/shm may hold."""

    memory: int
    shared: int

    @classmethod
    def here(cls) -> "Room":
        """What the machine, or the container, has free at the moment."""
        free = min(psutil.virtual_memory().available, *group_limits(Path("/")), 1 << 62)
        shared = Path("/dev/shm")
        return cls(free - RESERVE, shutil.disk_usage(shared).free if shared.is_dir() else 0)


QUICK_CASES = (Case(2_048, 4), Case(4_194_304, 4))
MANY = 32  # workers, of the target that is about many
MANY_CONTENDERS = ("gemps-float32", "gemps-shared-memory")
# Of the picture's curves over workers, in this order; more would be a tangle.
CURVES = (
    "gemps-shared-memory",
    "gemps-float32",
    "ray-actor",
    "torch-rpc-shared-memory",
    "torch-rpc-tcp",
    "torch-gloo-paper",
)
CURVE_PARAMETERS = 4_194_304


def quick(contenders: Sequence[str]) -> list[Part]:
    """The default: all at the two sizes that most targets name, and gemps with many workers."""
    return [
        Part(tuple(contenders), QUICK_CASES),
        Part(_of(MANY_CONTENDERS, contenders), tuple(Case(case.parameters, MANY) for case in QUICK_CASES)),
    ]


def targets(contenders: Sequence[str]) -> list[Part]:
    """Everything that a target or the picture is about: all at all sizes with 4 workers, some with more."""
    return [
        Part(tuple(contenders), tuple(Case(size, 4) for size in PARAMETERS)),
        Part(_of(CURVES, contenders), tuple(Case(CURVE_PARAMETERS, count) for count in WORKERS)),
        Part(_of(MANY_CONTENDERS, contenders), tuple(Case(size, MANY) for size in PARAMETERS)),
    ]


def full(contenders: Sequence[str]) -> list[Part]:
    """Everybody in every case."""
    return product(contenders, PARAMETERS, WORKERS)


PRESETS = {"quick": quick, "targets": targets, "full": full}


def product(contenders: Sequence[str], parameters: Sequence[int], workers: Sequence[int]) -> list[Part]:
    """Everybody at these sizes with these numbers of workers."""
    return [Part(tuple(contenders), tuple(Case(size, count) for size in parameters for count in workers))]


def make(parts: Iterable[Part], known: Mapping[str, Contender], room: Room) -> Plan:
    """Sort out what cannot be run. What is in several parts is run once."""
    contenders: dict[Case, list[Contender]] = {}
    skipped: list[Skipped] = []
    seen: set[tuple[str, Case]] = set()
    for part in parts:
        for case in part.cases:
            for name in part.contenders:
                if (name, case) in seen:
                    continue
                seen.add((name, case))
                contender = known[name]
                reason = contender.unavailable() or contender.unfit(case) or shortage(contender, case, room)
                if reason:
                    skipped.append(Skipped(name, case.parameters, case.workers, reason))
                else:
                    contenders.setdefault(case, []).append(contender)
    return Plan(dict(sorted(contenders.items())), skipped)


def _of(wanted: Sequence[str], among: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in wanted if name in among)


def shortage(contender: Contender, case: Case, room: Room) -> str | None:
    """Why there is too little memory for it; None when there is enough."""
    needed = contender.memory(case)
    if needed > room.memory:
        return f"takes {needed / GB:.1f} GB (server and workers, computed), and {room.memory / GB:.1f} GB are free"
    shared = contender.shared_memory(case)
    if shared > room.shared:
        return (
            f"takes {shared / GB:.1f} GB of shared memory (computed), and /dev/shm has {room.shared / GB:.1f} GB free"
        )
    return None


def window(case: Case, seconds: float) -> float:
    """Seconds that are timed."""
    return seconds * (LARGE_FACTOR if case.parameters >= LARGE_PARAMETERS else 1)
