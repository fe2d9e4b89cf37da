"""Evaluators' results: the newest, and the best by accuracy."""

from dataclasses import dataclass

from gem_server.state.central_variable import Version


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss and accuracy (0 to 1) of one version on test data; `run_seconds` since training started."""

    version: Version
    loss: float
    accuracy: float
    samples: int
    evaluator: str
    run_seconds: float


class Evaluations:
    """What was reported so far."""

    def __init__(self) -> None:
        self.newest: Evaluation | None = None
        self.best: Evaluation | None = None

    def report(self, evaluation: Evaluation) -> bool:
        """Note one; whether it is the best so far."""
        self.newest = evaluation
        if self.best is None or evaluation.accuracy > self.best.accuracy:
            self.best = evaluation
            return True
        return False
