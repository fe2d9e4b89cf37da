"""The file of a benchmark, and what can be said of it: medians, ratios, fairness."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import Skipped
from benchmarks.harness.run import Run
from benchmarks.peers.interface import Case, Contender

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several rounds: the median, and how far they lie apart."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None for no values."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found)) if found else None

    def shown(self, digits: int = 2) -> str:
        """As in tables and pages."""
        return f"{self.median:,.{digits}f} ({self.lowest:,.{digits}f}..{self.highest:,.{digits}f})"


@dataclass(frozen=True, slots=True)
class About:
    """A contender as the file knows it, which may be older than the code."""

    name: str
    title: str
    kind: str
    does: str

    @classmethod
    def of(cls, contender: Contender) -> "About":
        """From the code."""
        return cls(contender.name, contender.title, contender.kind, contender.does)


@dataclass(slots=True)
class Results:
    """Everything that was measured, in order."""

    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    contenders: dict[str, About]
    skipped: list[Skipped] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> "Results":
        """From a file. Raises ValueError, naming it, when it is none of these."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}, not {FORMAT}")
            return cls(
                found["machine"],
                found["versions"],
                found["settings"],
                {one["name"]: About(**one) for one in found["contenders"]},
                [Skipped(**one) for one in found["skipped"]],
                [Run(**one) for one in found["runs"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no file of `make bench` ({error}): run it again") from error

    def save(self, path: Path) -> None:
        """To a file, which is whole at any moment."""
        content = {
            "format": FORMAT,
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "contenders": [asdict(one) for one in self.contenders.values()],
            "skipped": [asdict(one) for one in self.skipped],
            "runs": [one.as_json() for one in self.runs],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)

    def cases(self) -> list[Case]:
        """Those with runs, by size."""
        return sorted({Case(run.parameters, run.workers) for run in self.runs})

    def names(self, case: Case, kind: str | None = None) -> list[str]:
        """Contenders with runs in this case, in the order of the file; of one kind."""
        ran = {run.contender for run in self.runs if (run.parameters, run.workers) == (case.parameters, case.workers)}
        return [name for name, about in self.contenders.items() if name in ran and kind in (None, about.kind)]

    def of(self, name: str, case: Case) -> dict[int, Run]:
        """Rounds that have figures."""
        return {
            run.round: run
            for run in self.runs
            if (run.contender, run.parameters, run.workers) == (name, case.parameters, case.workers)
            and run.error is None
        }

    def errors(self, name: str, case: Case) -> list[str]:
        """Of rounds that came to nothing."""
        return [
            run.error
            for run in self.runs
            if (run.contender, run.parameters, run.workers) == (name, case.parameters, case.workers)
            and run.error is not None
        ]

    def figure(self, name: str, case: Case, of_run: Callable[[Run], float]) -> Spread | None:
        """A figure of each round."""
        return Spread.of(of_run(run) for run in self.of(name, case).values())

    def ratio(self, name: str, case: Case, to: str, to_case: Case | None = None) -> Spread | None:
        """How many times as many commits a second, round by round; None where no round has both."""
        runs, others = self.of(name, case), self.of(to, to_case if to_case is not None else case)
        return Spread.of(rate(run) / rate(others[number]) for number, run in runs.items() if number in others)

    def best_peer(self, case: Case) -> str | None:
        """The peer with most commits a second, of those that completed every round."""
        rates = {
            name: found.median
            for name in self.names(case, "peer")
            if not self.errors(name, case) and (found := self.figure(name, case, rate)) is not None
        }
        return max(rates, key=rates.__getitem__, default=None)


def rate(run: Run) -> float:
    """Commits a second of all workers together."""
    return sum(run.commits) / run.seconds


def gigabytes(run: Run) -> float:
    """Parameters moved, in 10^9 bytes a second, each way, as if all were float32: what the model gets of it."""
    return rate(run) * Case(run.parameters, run.workers).vector / 1e9


def step_milliseconds(run: Run, percent: int) -> float:
    """A quantile of the steps of all workers."""
    return 1000 * run.took[percent]


def server_cpu(run: Run) -> float:
    """Processor milliseconds of the server for a commit."""
    return 1000 * run.server_cpu / sum(run.commits)


def workers_cpu(run: Run) -> float:
    """Processor milliseconds of the worker for a commit of its own."""
    return 1000 * run.workers_cpu / sum(run.commits)


def server_memory(run: Run) -> float:
    """Anonymous memory of the server at its peak, and shared memory that it maps, in 10^6 bytes.

    Where workers' gradients lie in memory that is shared they are the workers'.
    """
    return (run.server_anonymous + run.server_shared - run.delta_regions) / 1e6


def jain(run: Run) -> float:
    """Jain's index of the workers' commits."""
    return jain_index(run.commits)


def jain_index(counts: Sequence[float]) -> float:
    """1: all have the same; 1/n: one has everything. Raises ValueError when nobody has anything."""
    squares = sum(count * count for count in counts)
    if not squares:
        raise ValueError("there are no commits")
    return sum(counts) ** 2 / (len(counts) * squares)
