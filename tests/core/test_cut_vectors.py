"""Every rule works element by element: a vector cut into ranges moves as the whole one does, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from gem_core import RuleState, UpdateRule, create_rule
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.registry import BUILT_IN
from gem_core.rules import interface

Float32 = NDArray[np.float32]

LENGTH, WORKERS, ROUNDS, ETA = 5_003, 3, 8, 0.05


class Part:
    """A range of the vector, with a rule and workers' states for it."""

    def __init__(self, name: str, parameters: Float32) -> None:
        self.rule: UpdateRule = create_rule(name)
        self.theta = parameters.copy()
        tensor = TensorSpec("w", (parameters.size,), ElementType.FLOAT32, TensorKind.PARAMETER)
        self.rule.begin(Layout((tensor,)))
        self.states: list[RuleState] = []


def borders(parts: int) -> list[int]:
    return [LENGTH * number // parts // 256 * 256 for number in range(parts)] + [LENGTH]


def deltas() -> Iterator[Float32]:
    random = np.random.default_rng(7)
    while True:
        values = (ETA * random.standard_normal(LENGTH)).astype(np.float32)
        values[random.random(LENGTH) < 0.2] = 0
        yield values


def train(name: str, cuts: Sequence[int], first: Float32) -> Float32:
    """Train workers in turn. Returns the parameters."""
    parts = [Part(name, first[start:end]) for start, end in pairwise(cuts)]
    for part in parts:
        part.states = [part.rule.new_worker(part.theta) for _ in range(WORKERS)]
    for number, delta in zip(range(WORKERS * ROUNDS), deltas(), strict=False):
        staleness = min(number, WORKERS - 1)
        for part, (start, end) in zip(parts, pairwise(cuts), strict=True):
            state = part.states[number % WORKERS]
            part.rule.commit(part.theta, state, delta[start:end].copy(), staleness, ETA)
    return np.concatenate([part.theta for part in parts])


@pytest.mark.parametrize("kernels", ["serial", "parallel"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_ranges_of_a_vector_move_as_the_whole_does(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1 if kernels == "parallel" else 10**9)
    first = np.random.default_rng(1).standard_normal(LENGTH).astype(np.float32)
    whole = train(name, borders(1), first)
    assert np.isfinite(whole).all()
    assert np.count_nonzero(whole != first) > LENGTH // 2
    for parts in (2, 3, 5):
        assert train(name, borders(parts), first).tobytes() == whole.tobytes()
