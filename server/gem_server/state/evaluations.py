"""Evaluation results, in bounded memory."""

import math
from dataclasses import dataclass

from gem_server.version import Version

MAX_CURVE = 512


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss and accuracy (0 to 1) of a version; of a text also bits a character.

    `run_seconds`: seconds of training.
    """

    version: Version
    loss: float
    accuracy: float
    samples: int
    evaluator: str
    run_seconds: float
    bits_per_character: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all its figures are finite. The parameters of an evaluation that is not may be broken."""
        return all(map(math.isfinite, (self.loss, self.accuracy, self.bits_per_character or 0.0)))


class Evaluations:
    """The newest evaluation, the best one and the curve.

    The best one has the highest accuracy of those with finite figures. An evaluation with an infinite loss is never
    the best: a model that has diverged can still guess well.
    """

    def __init__(self) -> None:
        self.newest: Evaluation | None = None
        self.best: Evaluation | None = None
        self.curve: list[Evaluation] = []

    def report(self, evaluation: Evaluation) -> bool:
        """Add a result; return whether it is best."""
        self.newest = evaluation
        is_best = evaluation.is_finite and (self.best is None or evaluation.accuracy > self.best.accuracy)
        if is_best:
            self.best = evaluation
        self.curve.append(evaluation)
        if len(self.curve) > MAX_CURVE:
            self.curve = [one for at, one in enumerate(self.curve) if not at % 2 or one is self.best]
        return is_best
