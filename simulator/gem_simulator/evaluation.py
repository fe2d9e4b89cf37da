"""How well the central variable does at one time of a run. Needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The central variable at one time: over all training samples, and over the held-out ones; nothing is dropped out.

    `commits`: applied before. `at`: virtual seconds. Losses are means of the cross-entropy; NaN or inf: not finite.
    `accuracy`: from 0 to 1, of the held-out samples.
    """

    commits: int
    at: float
    training_loss: float
    test_loss: float
    accuracy: float
