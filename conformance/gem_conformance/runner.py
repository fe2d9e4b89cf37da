"""Plays scenarios against a candidate, several side by side, each with a server, a port and a process of its own."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gem_conformance.candidate import Candidate
from gem_conformance.faults import Fault
from gem_conformance.limits import Limits
from gem_conformance.play import Play
from gem_conformance.scenarios import Scenario
from gem_conformance.talk import NotSpokenError
from gem_conformance.wire import Wire

__all__ = ["Outcome", "play_by_hand", "play_scenarios"]

Verdict = Literal["passed", "failed", "not spoken"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one scenario.

    Attributes:
        scenario: its name.
        verdict: passed, failed, or not spoken: the candidate says that it does not speak what the scenario needs.
        fault: why it failed.
        output: the candidate's last lines, where it failed.
    """

    scenario: str
    verdict: Verdict
    fault: Fault | None = None
    output: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """Plain values for programs."""
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
    """Play scenarios against the candidate that `command` starts; the outcomes are in the scenarios' order.

    Args:
        scenarios: which.
        command: the candidate's command line; it is started anew for each.
        jobs: so many at a time.
        limits: how long to wait for what.
        on_outcome: told each outcome as soon as there is one, one at a time.

    Raises:
        OSError: the command cannot be started.
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
    futures = [pool.submit(one, scenario) for scenario in scenarios]
    try:
        return [future.result() for future in futures]
    except BaseException:  # Ctrl-C, or a command that cannot be started: nothing may stay behind
        stage.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Stage:
    """Where scenarios are played against candidates of one command. `close` ends those that run; any thread may."""

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self.is_closed = False
        self._command = command
        self._limits = limits
        self._candidates: set[Candidate] = set()
        self._lock = threading.Lock()

    def play(self, scenario: Scenario) -> Outcome:
        """Start a candidate, play, and end it."""
        wire = Wire()
        with tempfile.TemporaryDirectory(prefix="gemps-conformance-", ignore_cleanup_errors=True) as folder:
            wire.start()
            try:
                environment = _environment(scenario, wire, Path(folder) / "task.json")
                candidate = Candidate(self._command, environment, Path(folder) / "output.log", wire.events)
                try:
                    self._enter(candidate)
                    play = _play_of(scenario, wire, self._limits, by_hand=False)
                    return _judge(scenario, play, candidate.last_lines)
                finally:
                    candidate.end()
                    with self._lock:
                        self._candidates.discard(candidate)
            finally:
                wire.stop()

    def close(self) -> None:
        """End every candidate; their scenarios see that, and end, too."""
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
    """Play scenarios one after the other against candidates that somebody starts by hand.

    Args:
        scenarios: which.
        listen: HOST:PORT; port 0: any.
        limits: how long to wait for what.
        on_ready: told the environment that the next candidate must be started with.
        on_outcome: told each outcome.

    Raises:
        OSError: the address cannot be listened at.
    """
    outcomes = []
    for scenario in scenarios:
        wire = Wire(listen)
        with tempfile.TemporaryDirectory(prefix="gemps-conformance-") as folder:
            wire.start()
            listen = wire.address
            try:
                on_ready(scenario, _environment(scenario, wire, Path(folder) / "task.json"))
                play = _play_of(scenario, wire, limits, by_hand=True)
                outcome = _judge(scenario, play, list)
            finally:
                wire.stop()
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


def _play_of(scenario: Scenario, wire: Wire, limits: Limits, *, by_hand: bool) -> Play:
    return Play(
        scenario.task,
        wire,
        limits,
        worker_name=_worker_name(scenario),
        chunk_bytes=scenario.chunk_bytes,
        may_not_speak=scenario.may_not_speak,
        by_hand=by_hand,
    )


def _judge(scenario: Scenario, play: Play, last_lines: Callable[[], list[str]]) -> Outcome:
    try:
        play.perform(scenario.play)
    except Fault as fault:
        return Outcome(scenario.name, "failed", fault, tuple(last_lines()))
    except NotSpokenError:
        return Outcome(scenario.name, "not spoken")
    return Outcome(scenario.name, "passed")
