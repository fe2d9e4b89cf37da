"""Plays scenarios: each with servers, a task file and a process of its own, several at the same time."""

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
from gem_conformance.play import Play, StoppedError
from gem_conformance.scenarios import Scenario
from gem_conformance.scenarios.steps import judge_end
from gem_conformance.shards import ShardGroup
from gem_conformance.talk import NotSpokenError
from gem_conformance.wire import Wire
from gem_core.shards import Shard

__all__ = ["Outcome", "perform", "play_by_hand", "play_scenarios"]

Verdict = Literal["passed", "failed", "not spoken"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario. `output`: the last lines of a candidate that failed."""

    scenario: str
    verdict: Verdict
    fault: FaultError | None = None
    output: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """Return values for JSON."""
        values: dict[str, object] = {"scenario": self.scenario, "verdict": self.verdict}
        if self.fault is not None:
            values |= {
                "fault": self.fault.name.name,
                "expected": self.fault.expected,
                "came": self.fault.came,
                "after": self.fault.after,
                "step": self.fault.step,
                "place": self.fault.place.value,
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
    """Play scenarios against processes of `command`, `jobs` at the same time.

    `on_outcome` is never called concurrently. Raises OSError if the command cannot be started.
    """
    told = threading.Lock()
    stage = _Stage(command, limits or Limits())

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
                with self._lock:
                    if self.is_closed:
                        return Outcome(scenario.name, "failed")
                    self._candidates.add(candidate)
                    candidate.start()
                return perform(scenario, wires, self._limits, candidate, candidate.last_lines)
            finally:
                candidate.terminate()
                with self._lock:
                    self._candidates.discard(candidate)

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            for candidate in self._candidates:
                candidate.kill()


def play_by_hand(
    scenarios: Iterable[Scenario],
    listen: str,
    *,
    limits: Limits,
    on_ready: Callable[[Scenario, dict[str, str]], None],
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Play in sequence against candidates that are started by hand; scenarios that end processes are left out.

    `listen`: HOST:PORT. `on_ready` gets the next candidate's environment. Raises OSError.
    """
    outcomes = []
    for scenario in scenarios:
        if scenario.needs_process:
            continue
        with tempfile.TemporaryDirectory(prefix="gemps-conformance-") as folder, _started(scenario, listen) as wires:
            listen = wires[0].address
            on_ready(scenario, _environment(scenario, wires[0], Path(folder) / "task.json"))
            outcome = perform(scenario, wires, limits, None, list)
        on_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def perform(
    scenario: Scenario,
    wires: Sequence[Wire],
    limits: Limits,
    process: Candidate | None,
    last_lines: Callable[[], list[str]],
) -> Outcome:
    """Take a scenario's steps at each of its servers, in a thread each."""
    group = ShardGroup(len(wires))
    plays = [
        Play(
            scenario,
            wire,
            limits,
            process,
            Shard(index, len(wires)),
            group,
            [f":{other.port}" for other in wires[1:]] if index == 0 else (),
        )
        for index, wire in enumerate(wires)
    ]
    errors: list[BaseException] = []

    def take_steps(play: Play) -> None:
        try:
            _take(scenario, play)
        except BaseException as error:
            errors.append(error)
            for other in plays:
                other.abandon()
        finally:
            if play.lane is not None:
                play.lane.stop()

    with ThreadPoolExecutor(len(plays)) as threads:
        list(threads.map(take_steps, plays))
    if any(isinstance(one, NotSpokenError) for one in errors):  # then others may miss the candidate
        return Outcome(scenario.name, "not spoken")
    if not errors:
        return Outcome(scenario.name, "passed")
    if isinstance(errors[0], FaultError):
        return Outcome(scenario.name, "failed", errors[0], tuple(last_lines()))
    raise errors[0]


def _take(scenario: Scenario, play: Play) -> None:
    try:
        for number, step in enumerate(scenario.steps, 1):
            play.step = f"{number} of {len(scenario.steps)}: {step.text}"
            step.take(play)
    except StoppedError:
        _judge_end(play)
    except FaultError as fault:
        play.explain(fault)
        raise


def _judge_end(play: Play) -> None:
    """The process has ended where it may. Raises FaultError, NotSpokenError."""
    try:
        judge_end(play, play.talk.exit_status, "it could not go on")
    except FaultError as fault:
        play.explain(fault)
        raise
    if play.forbidden is not None:  # the run needs a feature that the candidate does not have
        raise NotSpokenError


def _environment(scenario: Scenario, wire: Wire, task: Path) -> dict[str, str]:
    task.write_text(scenario.task.to_json(), encoding="utf-8")
    return {"GEMPS_SERVER": wire.address, "GEMPS_WORKER_NAME": scenario.worker_name, "GEMPS_CONFORMANCE": str(task)}


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
