"""The interface of figures, and the results that they judge."""

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


# The label of `Group.median_pi` in tables.
MEDIAN = "median of pi, second half"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, and whether it holds.

    `numbers` are by row and column, and may be infinite. With `must_hold`, a violation means that gemps has a bug.
    """

    claim: str
    met: bool
    numbers: Mapping[str, Mapping[str, float]]
    must_hold: bool = True


class Group:
    """The outcomes of one run over several seeds."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = tuple(outcomes)

    @property
    def loss(self) -> float:
        """Geometric mean of L; inf if one diverged."""
        return geometric_mean([one.loss for one in self.outcomes])

    @property
    def minibatch_loss(self) -> float:
        """The mean loss over the last tenth of the run's minibatches, averaged over seeds as `loss` is."""
        return geometric_mean([one.minibatch_loss for one in self.outcomes])

    @property
    def test_loss(self) -> float:
        """The held-out loss, averaged over seeds as `loss` is."""
        return geometric_mean([one.test_loss for one in self.outcomes])

    @property
    def accuracy(self) -> float:
        """Mean held-out accuracy."""
        return self.mean("accuracy")

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(one.has_diverged for one in self.outcomes)

    @property
    def failures(self) -> int:
        """The number of runs that failed."""
        return sum(one.has_failed for one in self.outcomes)

    def mean(self, name: str) -> float:
        """Return the mean of an attribute over the runs."""
        return float(np.mean([getattr(one, name) for one in self.outcomes]))

    @property
    def median_pi(self) -> float:
        """Mean of the second half's medians of pi."""
        halves = [one.medians.whole[len(one.medians.whole) // 2 :] for one in self.outcomes]
        return float(np.mean([np.mean(half) for half in halves]))


class Figure(ABC):
    """A figure of the reproduction.

    `about` says what is run, and how this differs from the paper. `remark` interprets the result. `size` is in inches.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    about: ClassVar[str]
    remark: ClassVar[str] = ""
    size: ClassVar[tuple[float, float]] = (7.0, 4.4)

    def subtitle(self, scope: Scope) -> str:
        """Return the picture's subtitle."""
        return scope.subtitle()

    @abstractmethod
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        """Return the runs that the figure needs, over all seeds, by name."""

    @abstractmethod
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        """Judge the figure's claims. `found` has the outcomes by the names of `runs`."""

    @abstractmethod
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        """Draw the figure on a canvas that has the heading already."""


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of non-negative numbers, or infinity."""
    if not all(math.isfinite(one) for one in values):
        return math.inf
    return math.exp(sum(math.log(max(one, 1e-300)) for one in values) / len(values))
