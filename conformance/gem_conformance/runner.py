"""Plays scenarios concurrently."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gem_conformance.candidate import Candidate
from gem_conformance.faults import FaultError
from gem_conformance.limits import Limits
from gem_conformance.play import Play, perform_together
from gem_conformance.scenarios import Scenario
from gem_conformance.shards import ShardGroup
from gem_conformance.talk import NotSpokenError
from gem_conformance.wire import Wire
from gem_core.shards import Shard

__all__ = ["Outcome", "play_by_hand", "play_scenarios"]

Verdict = Literal["passed", "failed", "not spoken"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one scenario; `output`: a failed candidate's."""

    scenario: str
    verdict: Verdict
    fault: FaultError | None = None
    output: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """JSON values."""
        values: dict[str, object] = {"scenario": self.scenario, "verdict": self.verdict}
        if self.fault is not None:
            values |= {
                "fault": self.fault.name.name,
                "expected": self.fault.expected,
                "came": self.fault.came,
                "after": self.fault.after,
                "place": self.fault.place.link,
                "output": list(self.output),
            }
        return values


def play_scenarios(
    scenarios: Iterable[Scenario],
    command: Sequence[str],
    *,
    jobs: int,
    limits: Limits | None = None,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Play against processes of `command`.

    `on_outcome` is never called concurrently. Raises OSError if the command cannot be started.
    """
    told = threading.Lock()
    limits = limits or Limits()
    stage = _Stage(command, limits)

    def one(scenario: Scenario) -> Outcome:
        outcome = stage.play(scenario)
        with told:
            if not stage.is_closed:
                on_outcome(outcome)
        return outcome

    pool = ThreadPoolExecutor(jobs)
    try:
        futures = [pool.submit(one, scenario) for scenario in scenarios]
        return [future.result() for future in futures]
    except BaseException:  # leave no process behind
        stage.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Stage:
    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self.is_closed = False
        self._command = command
        self._limits = limits
        self._candidates: set[Candidate] = set()
        self._lock = threading.Lock()

    def play(self, scenario: Scenario) -> Outcome:
        with (
            tempfile.TemporaryDirectory(prefix="gemps-conformance-", ignore_cleanup_errors=True) as folder,
            _started(scenario) as wires,
        ):
            environment = _environment(scenario, wires[0], Path(folder) / "task.json")
            output, events = Path(folder) / "output.log", [wire.events for wire in wires]
            candidate = Candidate(self._command, environment, output, events)
            try:
                self._enter(candidate)
                plays = _plays_of(scenario, wires, self._limits, by_hand=False)
                return _judge(scenario, plays, candidate.last_lines)
            finally:
                candidate.terminate()
                with self._lock:
                    self._candidates.discard(candidate)

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            for candidate in self._candidates:
                candidate.kill()

    def _enter(self, candidate: Candidate) -> None:
        with self._lock:
            self._candidates.add(candidate)
            if self.is_closed:
                candidate.kill()


def play_by_hand(
    scenarios: Iterable[Scenario],
    listen: str,
    *,
    limits: Limits,
    on_ready: Callable[[Scenario, dict[str, str]], None],
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Play in sequence against manually started candidates.

    `listen`: HOST:PORT. `on_ready` receives the next candidate's environment. Raises OSError.
    """
    outcomes = []
    for scenario in scenarios:
        with (
            tempfile.TemporaryDirectory(prefix="gemps-conformance-") as folder,
            _started(scenario, listen) as wires,
        ):
            listen = wires[0].address
            on_ready(scenario, _environment(scenario, wires[0], Path(folder) / "task.json"))
            outcome = _judge(scenario, _plays_of(scenario, wires, limits, by_hand=True), list)
        on_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def _environment(scenario: Scenario, wire: Wire, task: Path) -> dict[str, str]:
    task.write_text(scenario.task.to_json(), encoding="utf-8")
    return {
        "GEMPS_SERVER": wire.address,
        "GEMPS_WORKER_NAME": _worker_name(scenario),
        "GEMPS_CONFORMANCE": str(task),
    }


def _worker_name(scenario: Scenario) -> str:
    return f"candidate-{scenario.name}"


@contextmanager
def _started(scenario: Scenario, listen: str = "127.0.0.1:0") -> Iterator[list[Wire]]:
    host = listen.rpartition(":")[0]
    wires = [Wire(listen), *(Wire(f"{host}:0") for _ in range(1, scenario.shards))]
    try:
        for wire in wires:
            wire.start()
        yield wires
    finally:
        for wire in wires:
            wire.stop()


def _plays_of(scenario: Scenario, wires: Sequence[Wire], limits: Limits, *, by_hand: bool) -> list[Play]:
    group = ShardGroup(len(wires))
    return [
        Play(
            scenario.task,
            wire,
            limits,
            worker_name=_worker_name(scenario),
            chunk_bytes=scenario.chunk_bytes,
            may_not_speak=scenario.may_not_speak,
            by_hand=by_hand,
            shard=Shard(index, len(wires)),
            group=group,
            shards=[f":{other.port}" for other in wires[1:]] if index == 0 else (),
        )
        for index, wire in enumerate(wires)
    ]


def _judge(scenario: Scenario, plays: Sequence[Play], last_lines: Callable[[], list[str]]) -> Outcome:
    try:
        perform_together(plays, scenario.play)
    except FaultError as fault:
        return Outcome(scenario.name, "failed", fault, tuple(last_lines()))
    except NotSpokenError:
        return Outcome(scenario.name, "not spoken")
    return Outcome(scenario.name, "passed")
