"""Scores of the central variable."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores over all training and held-out samples, without dropout.

    `at`: virtual seconds. Losses: mean cross-entropy, maybe NaN or inf.
    """

    commits: int
    at: float
    training_loss: float
    test_loss: float
    accuracy: float
