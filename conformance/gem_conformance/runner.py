"""Plays scenarios, several at the same time. Each has its own servers, task file and candidate process."""

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
from gem_conformance.conversation import NotSupportedError
from gem_conformance.faults import FaultError
from gem_conformance.grpc_server import GrpcServer
from gem_conformance.limits import Limits
from gem_conformance.play import Play, StoppedError
from gem_conformance.scenarios import Scenario
from gem_conformance.scenarios.steps import judge_end
from gem_conformance.shards import ShardGroup
from gem_core.shards import Shard

__all__ = ["Outcome", "play_by_hand", "play_scenario", "play_scenarios"]

Verdict = Literal["passed", "failed", "not supported"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario.

    Attributes:
        scenario: its name.
        verdict: "not supported" means that the candidate lacks the optional part that the scenario is about.
        fault: why it failed; None if it did not.
        output: the last lines that the candidate printed, if it failed.
    """

    scenario: str
    verdict: Verdict
    fault: FaultError | None = None
    output: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """Return a dictionary for `json.dumps`; it has the details of the fault if there is one."""
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
    """Play scenarios against a candidate that is started anew for each of them. Returns the outcomes in their order.

    Args:
        scenarios: what to play.
        command: the program and arguments of the candidate.
        jobs: the number of scenarios that are played at the same time.
        limits: how long to wait for the candidate; None for the defaults.
        on_outcome: called as soon as a scenario has ended, in the order of ends, and never concurrently.

    Raises:
        OSError: the command cannot be started, or no port is free.
    """
    outcome_lock = threading.Lock()
    processes = _Processes(command, limits or Limits())

    def one(scenario: Scenario) -> Outcome:
        outcome = processes.play(scenario)
        with outcome_lock:
            if not processes.is_closed:
                on_outcome(outcome)
        return outcome

    pool = ThreadPoolExecutor(jobs)
    try:
        futures = [pool.submit(one, scenario) for scenario in scenarios]
        return [future.result() for future in futures]
    except BaseException:  # an interruption, too, must leave no candidate running
        processes.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Processes:
    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self.is_closed = False
        self._command = command
        self._limits = limits
        self._candidates: set[Candidate] = set()
        self._lock = threading.Lock()

    def play(self, scenario: Scenario) -> Outcome:
        with (
            tempfile.TemporaryDirectory(prefix="gemps-conformance-", ignore_cleanup_errors=True) as folder,
            _started(scenario) as servers,
        ):
            environment = _candidate_environment(scenario, servers[0], Path(folder) / "task.json")
            output, events = Path(folder) / "output.log", [server.events for server in servers]
            candidate = Candidate(self._command, environment, output, events)
            try:
                with self._lock:
                    if self.is_closed:
                        return Outcome(scenario.name, "failed")
                    self._candidates.add(candidate)
                    candidate.start()
                return play_scenario(scenario, servers, self._limits, candidate, candidate.last_lines)
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
    """Play scenarios one after the other against candidates that a person starts.

    Scenarios that signal or kill the process are skipped.

    Args:
        scenarios: what to play.
        listen: HOST:PORT of the primary's server. The port that is chosen for 0 is kept for all scenarios.
        limits: how long to wait for a candidate.
        on_ready: called once the servers of a scenario listen, with the environment of the candidate to be started.
        on_outcome: called when a scenario has ended.

    Raises:
        OSError: another program has the port.
    """
    outcomes = []
    for scenario in scenarios:
        if scenario.needs_process:
            continue
        with tempfile.TemporaryDirectory(prefix="gemps-conformance-") as folder, _started(scenario, listen) as servers:
            listen = servers[0].address
            on_ready(scenario, _candidate_environment(scenario, servers[0], Path(folder) / "task.json"))
            outcome = play_scenario(scenario, servers, limits, None, list)
        on_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def play_scenario(
    scenario: Scenario,
    servers: Sequence[GrpcServer],
    limits: Limits,
    process: Candidate | None,
    last_lines: Callable[[], list[str]],
) -> Outcome:
    """Play one scenario: each server takes all of its steps, in its own thread.

    Args:
        scenario: what to play.
        servers: the servers, which are started already; the first is the primary.
        limits: how long to wait for the candidate.
        process: the candidate, which is started already; None if a person starts it.
        last_lines: returns the end of the candidate's output.
    """
    group = ShardGroup(len(servers))
    plays = [
        Play(
            scenario,
            server,
            limits,
            process,
            Shard(index, len(servers)),
            group,
            [f":{other.port}" for other in servers[1:]] if index == 0 else (),
        )
        for index, server in enumerate(servers)
    ]
    errors: list[BaseException] = []

    def take_steps(play: Play) -> None:
        try:
            _take_steps(scenario, play)
        except BaseException as error:
            errors.append(error)
            for other in plays:
                other.abandon()
        finally:
            if play.lane is not None:
                play.lane.stop()

    with ThreadPoolExecutor(len(plays)) as threads:
        list(threads.map(take_steps, plays))
    # This error takes precedence, because the other servers may have failed only as the candidate had ended.
    if any(isinstance(one, NotSupportedError) for one in errors):
        return Outcome(scenario.name, "not supported")
    if not errors:
        return Outcome(scenario.name, "passed")
    if isinstance(errors[0], FaultError):
        return Outcome(scenario.name, "failed", errors[0], tuple(last_lines()))
    raise errors[0]


def _take_steps(scenario: Scenario, play: Play) -> None:
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
    """Judge the status of a process that ended at a step where it may end.

    Raises:
        FaultError: the status is not 2 after a final refusal, or else 0, 2 or 3.
        NotSupportedError: the run needs a feature that the candidate lacks, and it ended as it should.
    """
    try:
        judge_end(play, play.conversation.exit_status, "it could not go on")
    except FaultError as fault:
        play.explain(fault)
        raise
    if play.forbidden is not None:  # Join was refused with FEATURE
        raise NotSupportedError


def _candidate_environment(scenario: Scenario, server: GrpcServer, task: Path) -> dict[str, str]:
    task.write_text(scenario.task.to_json(), encoding="utf-8")
    return {"GEMPS_SERVER": server.address, "GEMPS_WORKER_NAME": scenario.worker_name, "GEMPS_CONFORMANCE": str(task)}


@contextmanager
def _started(scenario: Scenario, listen: str = "127.0.0.1:0") -> Iterator[list[GrpcServer]]:
    host = listen.rpartition(":")[0]
    servers = [GrpcServer(listen), *(GrpcServer(f"{host}:0") for _ in range(1, scenario.shards))]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()
