"""What gemps set out to reach (ratios within one run), held against what was found."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gem_server.setting_tables import LimitSettings
from gem_server.state.memory import MemoryBudget

from benchmarks.harness.results import Results, Spread, jain, server_memory
from benchmarks.peers.interface import Case
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

SMALL, MIDDLE, LARGE = Case(2_048, 4), Case(4_194_304, 4), Case(61_100_840, 4)
MANY = 32
BESIDE_VECTORS = 250_000_000  # bytes of the server's process beside the model's vectors
GEM_VECTORS = 2  # a worker: moment and snapshot

Verdict = Literal["met", "not met", "reported", "not measured"]


@dataclass(frozen=True, slots=True)
class Goal:
    """Commits a second of a contender, as a multiple of another's."""

    title: str
    name: str
    case: Case
    to: str | None  # None: the best peer
    least: float | None  # None: reported only


GOALS = (
    Goal("P = 4.2 M, stream, float32", "gemps-float32", MIDDLE, "grpc-echo-cpp", 0.95),
    Goal("P = 4.2 M, stream, float32", "gemps-float32", MIDDLE, "torch-rpc-tcp", None),
    Goal("P = 4.2 M, bfloat16 both ways", "gemps-bfloat16", MIDDLE, "torch-rpc-tcp", 1.2),
    Goal("P = 4.2 M, shared memory", "gemps-shared-memory", MIDDLE, None, 2.0),
    Goal("P = 4.2 M, shared memory", "gemps-shared-memory", MIDDLE, "torch-gloo-paper", 10.0),
    Goal("P = 61 M, shared memory", "gemps-shared-memory", LARGE, None, 2.0),
    Goal("P = 2 048", "gemps-float32", SMALL, None, 1.5),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    case: str
    target: str
    found: str
    verdict: Verdict


def rows(results: Results) -> list[Row]:
    """All of them."""
    found = [_ratio(results, goal) for goal in GOALS]
    found += _many(results)
    found += _memory(results)
    return found


def _ratio(results: Results, goal: Goal) -> Row:
    other = goal.to if goal.to is not None else results.best_peer(goal.case)
    wanted = "reported" if goal.least is None else f"at least {goal.least:g}"
    best = "the best peer" if other is None else f"the best peer ({other})"
    ratio = results.ratio(goal.name, goal.case, other) if other is not None else None
    return Row(goal.title, f"{wanted}: times {goal.to or best}", *_judged(ratio, goal.least))


def _judged(found: Spread | None, least: float | None) -> tuple[str, Verdict]:
    if found is None:
        return "-", "not measured"
    if least is None:
        return found.shown(), "reported"
    return found.shown(), "met" if found.median >= least else "not met"


def _many(results: Results) -> Iterator[Row]:
    measured = False
    for case in results.cases():
        few = Case(case.parameters, 4)
        if case.workers != MANY:
            continue
        for name in results.names(case, "gemps"):
            title = f"{MANY} workers against 4, P = {case.parameters:,}, {name}"
            ratio = results.ratio(name, case, name, few)
            fairness = results.figure(name, case, jain)
            if ratio is None or fairness is None:
                continue
            measured = True
            yield Row(title, "at least 0.9 of the commits/s", *_judged(ratio, 0.9))
            fair: Verdict = "met" if fairness.median >= 0.99 else "not met"
            yield Row(title, "Jain's index at least 0.99", fairness.shown(4), fair)
    if not measured:
        yield Row(f"{MANY} workers against 4", "at least 0.9 of the commits/s", "-", "not measured")


def _memory(results: Results) -> Iterator[Row]:
    """Of each size the run that came nearest to its bound."""
    for parameters in sorted({case.parameters for case in results.cases()}):
        worst: tuple[float, str] | None = None
        for case in (one for one in results.cases() if one.parameters == parameters):
            for name in results.names(case, "gemps"):
                found = results.figure(name, case, server_memory)
                if found is None:
                    continue
                bound = memory_bound(case) / 1e6
                share = found.highest / bound
                shown = f"{share:.2f} ({found.highest:,.0f} of {bound:,.0f} MB: {name}, {case.workers} workers)"
                worst = max(worst, (share, shown)) if worst is not None else (share, shown)
        if worst is not None:
            yield Row(
                f"server memory, P = {parameters:,}",
                "at most 1 times theta + 2 vectors a worker + pool + 2 shared snapshots + 250 MB",
                worst[1],
                "met" if worst[0] <= 1 else "not met",
            )


def memory_bound(case: Case) -> int:
    """Bytes that the server promises to stay below: its own account of vectors, and 250 MB."""
    layout = Layout([TensorSpec("weight", (case.parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    unset = int(LimitSettings.model_fields["staging_buffers"].default)
    budget = MemoryBudget(limit=0, staging_buffers=unset, vectors_per_worker=GEM_VECTORS)
    return budget.model_bytes(layout) + case.workers * budget.worker_bytes(layout) + BESIDE_VECTORS
