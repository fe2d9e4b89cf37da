"""Models and methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gem_reproduction.figures.arrivals import ARRIVALS, failed
from gem_reproduction.figures.interface import Group
from gem_reproduction.runs import Method, Run, Scope

GEM, MUON, SYNCHRONOUS_ADAM = "gem", "synchronous Muon", "synchronous Adam"
ORDER = "round-robin"
# Workers for choices.
CHOSEN_WITH = 8
# Frequencies of bytes give 3.25.
LEAST_LEARNT = 3.2
_POINTS = 16
_WORKERS, _QUICK_WORKERS = (1, 8, 32, 100), (8, 32)
# Per scope.steps.
_FULL, _QUICK = 5, 10

_PLAIN = (0.05, 0.1, 0.2, 0.4, 0.8)
_PLAIN_DIGITS = (0.0125, 0.025, 0.05, 0.1, 0.2)
_SCALED = (0.0005, 0.001, 0.002, 0.004, 0.008)
_SPECTRAL = (0.001, 0.002, 0.004, 0.008, 0.016)
_SYNCHRONOUS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)


class _Tried(NamedTuple):
    colour: str
    settings: Mapping[str, str]
    etas: tuple[float, ...] = _SCALED
    candidate: str = ""
    method: Method = "simulation"


TRIED: Mapping[str, _Tried] = {
    GEM: _Tried("#0a63c2", {}, _PLAIN),
    "direction rms": _Tried("#66ccee", {"direction": "rms"}),
    "spectral": _Tried("#228833", {"direction": "spectral"}, _SPECTRAL),
    "rms": _Tried("#ccbb44", {"precondition": "rms"}),
    "averaged-rms": _Tried("#aa3377", {"precondition": "averaged-rms"}),
    "rms and spectral": _Tried("#228833", {"precondition": "rms", "direction": "spectral"}),
    "averaged-rms and spectral": _Tried("#228833", {"precondition": "averaged-rms", "direction": "spectral"}),
    "asynchronous Adam": _Tried("#999999", {}, candidate="asynchronous-adam"),
    "DOWNPOUR": _Tried("#c2410c", {"rule": "downpour"}, _PLAIN),
    MUON: _Tried("#222222", {}, (*_SYNCHRONOUS, 0.064, 0.128), method="synchronous-muon"),
    SYNCHRONOUS_ADAM: _Tried("#8a7a10", {}, _SYNCHRONOUS, method="synchronous-adam"),
}
SYNCHRONOUS = (MUON, SYNCHRONOUS_ADAM)
NEW_SETTINGS = ("direction rms", "spectral", "rms", "averaged-rms", "rms and spectral", "averaged-rms and spectral")


@dataclass(frozen=True, slots=True)
class Case:
    """Model on a task."""

    settings: Mapping[str, Any]
    methods: tuple[str, ...]
    synchronous: tuple[str, ...] = SYNCHRONOUS

    @property
    def is_text(self) -> bool:
        """Whether it is a transformer."""
        return bool(self.settings["task"] == "text")

    def etas(self, method: str) -> tuple[float, ...]:
        """Learning rates to try."""
        etas = TRIED[method].etas
        return etas if self.is_text or etas is not _PLAIN else _PLAIN_DIGITS

    def runs(
        self, scope: Scope, method: str, workers: int, eta: float, arrival: str = ORDER, seconds: float = 0.0
    ) -> tuple[Run, ...]:
        """Declare runs over seeds."""
        one, count = TRIED[method], gradients(scope)
        budget = {"seconds": seconds, "commits": 8 * count} if seconds else {"commits": count}
        return scope.simulations(
            method=one.method,
            data="excerpt" if self.is_text else "task",
            candidate=one.candidate,
            workers=workers,
            eta=eta,
            evaluate_every=max(1, count // _POINTS) if self.is_text else 0,
            **{**self.settings, **one.settings, **budget, **ARRIVALS[arrival](workers)},
        )

    def failed(self, group: Group) -> int:
        """Diverged or ineffective runs."""
        if not self.is_text:
            return failed(group)
        return sum(one.has_diverged or not one.test_loss < LEAST_LEARNT for one in group.outcomes)


def _text(layers: int, width: int, heads: int, methods: tuple[str, ...]) -> Case:
    sizes = {"layers": layers, "width": width, "heads": heads, "context": 32}
    return Case({"task": "text", "model": "transformer", "batch_size": 8, "clip_norm": 1.0, **sizes}, methods)


def _digits(model: str) -> Case:
    return Case({"task": "digits", "model": model}, (GEM, *NEW_SETTINGS), ())


FIRST_CASE = "text, 28 k"
CASES: Mapping[str, Case] = {
    FIRST_CASE: _text(2, 24, 2, (GEM, *NEW_SETTINGS, "asynchronous Adam", "DOWNPOUR")),
    "digits, mlp": _digits("mlp"),
    "digits, cnn": _digits("cnn"),
    "text, 107 k": _text(2, 56, 4, (GEM, *NEW_SETTINGS, "asynchronous Adam")),
    "text, 388 k": _text(3, 96, 4, (GEM, *NEW_SETTINGS, "asynchronous Adam")),
}


def gradients(scope: Scope) -> int:
    """Gradients a run."""
    return scope.steps * (_QUICK if scope.quick else _FULL)


def workers_of(scope: Scope) -> tuple[int, ...]:
    """Numbers of workers."""
    return _QUICK_WORKERS if scope.quick else _WORKERS
