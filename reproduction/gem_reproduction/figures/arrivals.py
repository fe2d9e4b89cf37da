"""What the figures beyond the paper share: orders of arrival, how little a short form needs, and when a run failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gem_reproduction.figures.interface import Group
from gem_reproduction.runs import Scope

# Of the held-out digits: a tenth is chance, and 0.9 what every rule that works gets to.
LEAST_ACCURACY = 0.2
# A gradient's time in these orders of arrival is 1 in the middle; nothing else takes time.
_EXPONENTIAL = "exponential:1"
_LOGNORMAL = "lognormal:1,0.5"


def round_robin(workers: int) -> dict[str, Any]:
    """A constant order: every commit but the first ones has a staleness of workers - 1."""
    return {"order": "round-robin"}


def exponential(workers: int) -> dict[str, Any]:
    """Who comes first is served first: every commit may be anybody's, whatever came before."""
    return {"order": "fifo", "compute_time": _EXPONENTIAL}


def slow_quarter(workers: int) -> dict[str, Any]:
    """A quarter of the workers takes four times as long, and goes on alone when the others have made their steps."""
    slow = workers // 4
    return {"order": "fifo", "compute_time": _LOGNORMAL} | ({"slow": f"0-{slow - 1}x4"} if slow else {})


# From a number of workers to settings of a simulation, by the words that pictures and tables say.
ARRIVALS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "round-robin": round_robin,
    "exponential compute times": exponential,
    "lognormal, a quarter 4 times slower": slow_quarter,
}


def shorter(scope: Scope, *, seeds: int = 1, parts: int = 1) -> Scope:
    """The quick form with the MLP, at most so many seeds, and 1/parts of the steps; the full form is as it was."""
    if not scope.quick:
        return scope
    return replace(scope, model="mlp", seeds=min(seeds, scope.seeds), steps=max(1, scope.steps // parts))


def words(scope: Scope, how: str) -> str:
    """A subtitle for runs of this scope: `how` in place of the order that the paper's figures have."""
    return f"{scope.subtitle().replace('round-robin', how)}, {scope.steps} steps a worker"


def failed(group: Group) -> int:
    """Runs that diverged or learnt (next to) nothing."""
    return sum(one.has_diverged or one.accuracy < LEAST_ACCURACY for one in group.outcomes)
