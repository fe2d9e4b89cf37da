"""What a worker does between two commits."""

from dataclasses import dataclass

__all__ = ["WorkerStep"]


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """Local steps (w += -rate * eta * gradient) between commits, of whose gradients a commit has the sum.

    `normalise`: the mean. `preconditioned`: each step's gradient is divided by the root mean square of those means.
    """

    local_steps: int = 1
    normalise: bool = False
    rate: float = 1.0
    preconditioned: bool = False
