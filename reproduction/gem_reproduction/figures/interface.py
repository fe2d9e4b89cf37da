"""Base types of figures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gem_reproduction.outcomes import Outcome
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


# Table label of `Group.median_pi`.
MEDIAN = "median of pi, second half"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Claim, and whether it holds.

    `numbers`: by row and column, maybe inf. `must_hold`: a violation is a bug in gemps.
    """

    claim: str
    met: bool
    numbers: Mapping[str, Mapping[str, float]]
    must_hold: bool = True


class Group:
    """A run over several seeds."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = tuple(outcomes)

    @property
    def loss(self) -> float:
        """Geometric mean of L; inf if one diverged."""
        return geometric_mean([one.loss for one in self.outcomes])

    @property
    def minibatch_loss(self) -> float:
        """Last tenth's, as `loss`."""
        return geometric_mean([one.minibatch_loss for one in self.outcomes])

    @property
    def test_loss(self) -> float:
        """Held-out, as `loss`."""
        return geometric_mean([one.test_loss for one in self.outcomes])

    @property
    def accuracy(self) -> float:
        """Mean held-out accuracy."""
        return self.mean("accuracy")

    @property
    def diverged(self) -> int:
        """Diverged runs."""
        return sum(one.has_diverged for one in self.outcomes)

    @property
    def failures(self) -> int:
        """Failed runs."""
        return sum(one.has_failed for one in self.outcomes)

    def mean(self, name: str) -> float:
        """An attribute's mean."""
        return float(np.mean([getattr(one, name) for one in self.outcomes]))

    @property
    def median_pi(self) -> float:
        """Mean of the second half's medians of pi."""
        halves = [one.medians.whole[len(one.medians.whole) // 2 :] for one in self.outcomes]
        return float(np.mean([np.mean(half) for half in halves]))


class Figure(ABC):
    """Figure.

    `about`: what is run, and differences from the paper. `remark`: interpretation. `size`: inches.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    about: ClassVar[str]
    remark: ClassVar[str] = ""
    size: ClassVar[tuple[float, float]] = (7.0, 4.4)

    def subtitle(self, scope: Scope) -> str:
        """Picture's subtitle."""
        return scope.subtitle()

    @abstractmethod
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        """Declare runs over seeds, by name."""

    @abstractmethod
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        """Judge the claim; `found` has the names of `runs`."""

    @abstractmethod
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        """Draw on a canvas with heading."""


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of non-negative numbers, or inf."""
    if not all(math.isfinite(one) for one in values):
        return math.inf
    return math.exp(sum(math.log(max(one, 1e-300)) for one in values) / len(values))
