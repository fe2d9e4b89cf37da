"""What a worker does between two commits."""

from dataclasses import dataclass, replace

__all__ = ["WorkerStep"]


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """Local steps (w += -rate * eta * gradient) between commits, of whose gradients a commit has the sum.

    `normalise`: the mean. `scaled`: each step's gradient is divided by the root mean square of sums or means.
    """

    local_steps: int = 1
    normalise: bool = False
    rate: float = 1.0
    scaled: bool = False

    def with_direction(self, direction: str) -> "WorkerStep":
        """Scaled, if eta is a step's size."""
        return replace(self, scaled=self.local_steps > 1 and direction != "gradient")
