"""Orders of arrival, and short scopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gem_reproduction.figures.interface import Group
from gem_reproduction.runs import Scope

# Chance is 0.1.
LEAST_ACCURACY = 0.2
_EXPONENTIAL = "exponential:1"
_LOGNORMAL = "lognormal:1,0.5"


def round_robin(workers: int) -> dict[str, Any]:
    """Constant order: staleness is workers - 1."""
    return {"order": "round-robin"}


def exponential(workers: int) -> dict[str, Any]:
    """First come, first served, in random order."""
    return {"order": "fifo", "compute_time": _EXPONENTIAL}


def slow_quarter(workers: int) -> dict[str, Any]:
    """One quarter is 4 times slower."""
    slow = workers // 4
    return {"order": "fifo", "compute_time": _LOGNORMAL} | ({"slow": f"0-{slow - 1}x4"} if slow else {})


# Settings from the number of workers.
ARRIVALS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "round-robin": round_robin,
    "exponential compute times": exponential,
    "lognormal, a quarter 4 times slower": slow_quarter,
}


def shorter(scope: Scope, *, seeds: int = 1, parts: int = 1) -> Scope:
    """If quick: use the MLP, at most `seeds` seeds and 1/`parts` of the steps."""
    if not scope.quick:
        return scope
    return replace(scope, model="mlp", seeds=min(seeds, scope.seeds), steps=max(1, scope.steps // parts))


def words(scope: Scope, how: str) -> str:
    """Subtitle with `how` as the order."""
    return f"{scope.subtitle().replace('round-robin', how)}, {scope.steps} steps a worker"


def failed(group: Group) -> int:
    """Diverged or ineffective runs."""
    return sum(one.has_diverged or one.accuracy < LEAST_ACCURACY for one in group.outcomes)
