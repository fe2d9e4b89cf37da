"""What a worker does between two commits."""

from dataclasses import dataclass, replace

__all__ = ["WorkerStep"]


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """Local steps (w += -rate * eta * gradient) between commits, of whose gradients a commit has the sum.

    `normalise`: the mean. `preconditioned`: each step's gradient is divided by the root mean square of sums or means.
    """

    local_steps: int = 1
    normalise: bool = False
    rate: float = 1.0
    preconditioned: bool = False

    def with_direction(self, direction: str) -> "WorkerStep":
        """Preconditioned, if eta is a step's size."""
        return replace(self, preconditioned=self.preconditioned or (self.local_steps > 1 and direction != "gradient"))
