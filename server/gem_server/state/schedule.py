"""Learning rate schedules."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EtaSchedule:
    """Eta as a function of the clock (applied commits).

    Warm-up of W commits: at clock c < W, the schedule's value times (c + 1) / W; then decay. The cosine ends after
    `decay_commits` (0: with the run).
    """

    kind: Literal["constant", "step", "cosine"]
    eta: float
    warmup: int = 0
    step_every: int = 0
    step_factor: float = 0.1
    decay_commits: int = 0
    eta_min: float = 0.0

    def at(self, commits: int, end: int = 0) -> float:
        """Eta after `commits` of `end`."""
        eta = self.eta
        if self.kind == "step":
            eta = self.eta * self.step_factor ** (max(0, commits - self.warmup) // self.step_every)
        elif self.kind == "cosine":
            done = min(1.0, max(0, commits - self.warmup) / max(1, (self.decay_commits or end) - self.warmup))
            eta = self.eta_min + (self.eta - self.eta_min) * (1 + math.cos(math.pi * done)) / 2
        if commits < self.warmup:
            eta *= (commits + 1) / self.warmup
        return eta
