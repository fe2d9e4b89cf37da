"""Evaluation results, in bounded memory."""

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


class Evaluations:
    """Newest, best (by accuracy) and curve."""

    def __init__(self) -> None:
        self.newest: Evaluation | None = None
        self.best: Evaluation | None = None
        self.curve: list[Evaluation] = []

    def report(self, evaluation: Evaluation) -> bool:
        """Add a result; return whether it is best."""
        self.newest = evaluation
        is_best = self.best is None or evaluation.accuracy > self.best.accuracy
        if is_best:
            self.best = evaluation
        self.curve.append(evaluation)
        if len(self.curve) > MAX_CURVE:
            self.curve = [one for at, one in enumerate(self.curve) if not at % 2 or one is self.best]
        return is_best
