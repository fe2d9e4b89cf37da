"""What a worker does between two commits."""

from dataclasses import dataclass, replace

__all__ = ["WorkerStep"]


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """Local steps (w += -rate * eta * gradient) between two commits. A commit has the sum of their gradients.

    With `normalise` it has their mean. With `scaled`, each step's gradient is divided by the root of a mean of squares
    of the sums or means.
    """

    local_steps: int = 1
    normalise: bool = False
    rate: float = 1.0
    scaled: bool = False

    def with_direction(self, direction: str) -> "WorkerStep":
        """Return these local steps for a direction. They are scaled if its eta is the size of a step."""
        return replace(self, scaled=self.local_steps > 1 and direction != "gradient")
