"""What a figure is: the runs it needs, the claim it is held to, and how it is drawn."""

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


# What tables call `Group.median_pi`.
MEDIAN = "median of pi, second half"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim as a stated inequality, and whether it is met.

    Attributes:
        claim: in words and numbers.
        met: it is.
        numbers: by which it was judged, as a table: rows by name, of each its columns by name. What is not finite
            stays so: inf is the loss of a run that diverged.
        must_hold: gemps is wrong somewhere if it is not met. Others are told for what they are.
    """

    claim: str
    met: bool
    numbers: Mapping[str, Mapping[str, float]]
    must_hold: bool = True


class Group:
    """The same run over several seeds."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = tuple(outcomes)

    @property
    def loss(self) -> float:
        """L: the geometric mean over the seeds; inf when one diverged."""
        return geometric_mean([one.loss for one in self.outcomes])

    @property
    def minibatch_loss(self) -> float:
        """The same of the loss of the last tenth's minibatches."""
        return geometric_mean([one.minibatch_loss for one in self.outcomes])

    @property
    def test_loss(self) -> float:
        """The same of the loss over the held-out samples."""
        return geometric_mean([one.test_loss for one in self.outcomes])

    @property
    def accuracy(self) -> float:
        """On the held-out samples: the mean over the seeds."""
        return self.mean("accuracy")

    @property
    def diverged(self) -> int:
        """Runs that did."""
        return sum(one.has_diverged for one in self.outcomes)

    @property
    def failures(self) -> int:
        """Runs that diverged or learnt nothing."""
        return sum(one.has_failed for one in self.outcomes)

    def mean(self, name: str) -> float:
        """Of a number of the outcomes, over the seeds."""
        return float(np.mean([getattr(one, name) for one in self.outcomes]))

    @property
    def median_pi(self) -> float:
        """The median of pi: the mean over the second half of the run, and over seeds."""
        halves = [one.medians.whole[len(one.medians.whole) // 2 :] for one in self.outcomes]
        return float(np.mean([np.mean(half) for half in halves]))


class Figure(ABC):
    """A figure of the paper, or one beside it.

    Attributes:
        name: what `gemps reproduce` calls it. title: what it shows.
        claim: the paper's, in our words.
        about: what is run, and where that differs from the paper.
        remark: what to make of the verdicts, where they do not speak for themselves.
        size: of the picture, in inches.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    about: ClassVar[str]
    remark: ClassVar[str] = ""
    size: ClassVar[tuple[float, float]] = (7.0, 4.4)

    def subtitle(self, scope: Scope) -> str:
        """What the picture says of how it was made."""
        return scope.subtitle()

    @abstractmethod
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        """What it needs: for each name, a run over the seeds."""

    @abstractmethod
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        """What becomes of the claim. `found` has the names of `runs`."""

    @abstractmethod
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        """Draw it; the canvas has the figure's size, and a heading already."""


def geometric_mean(values: Sequence[float]) -> float:
    """Of numbers that are not negative; inf when one of them is not finite."""
    if not all(math.isfinite(one) for one in values):
        return math.inf
    return math.exp(sum(math.log(max(one, 1e-300)) for one in values) / len(values))
