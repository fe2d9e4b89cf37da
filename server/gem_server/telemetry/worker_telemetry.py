"""Measurements of a worker's commits."""

from dataclasses import dataclass, field
from typing import NamedTuple

from gem_core import Statistics
from gem_server.telemetry.conduct import Conduct
from gem_server.telemetry.histogram import STALENESS_BOUNDS, WAIT_BOUNDS, Histogram
from gem_server.telemetry.rate_meter import RateMeter

# Newest commit's weight.
NEWEST = 0.05


@dataclass(slots=True)
class Distributions:
    """Optional measurements."""

    staleness: Histogram = field(default_factory=lambda: Histogram(STALENESS_BOUNDS))
    wait: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    mean_pi: float = 0.0
    blocked: float = 0.0
    clamped: float = 0.0

    def record(self, statistics: Statistics, staleness: int, waited: float, weight: float = NEWEST) -> None:
        """Count one commit; the first needs `weight` 1."""
        self.staleness.record(staleness)
        self.wait.record(waited)
        self.mean_pi += weight * (statistics.mean_pi - self.mean_pi)
        self.blocked += weight * (statistics.blocked_fraction - self.blocked)
        self.clamped += weight * (statistics.clamped_fraction - self.clamped)


class Figures(NamedTuple):
    """Statistics of the newest commit; recent means of its first three (disabled: empty)."""

    newest: Statistics
    recent: tuple[float, ...]


@dataclass(slots=True)
class WorkerTelemetry:
    """A worker's telemetry in this process.

    `measured`: commits in the sums. `loss`: of the newest commit that had one. `losses` and `loss_sum`: of the commits
    with a loss since the history's current interval began. Waits in seconds. `step_seconds`: of `Pace`.
    `conduct`: what its last commits have in common. `distributions`: None before the first commit, or disabled.
    `pieces`: figures that other shards reported, by index.
    """

    rate: RateMeter = field(default_factory=RateMeter)
    refused: int = 0
    duplicates: int = 0
    staleness_last: int = 0
    staleness_sum: int = 0
    statistics: Statistics | None = None
    loss: float | None = None
    losses: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    local_steps: int = 0
    committed_at: float | None = None
    step_seconds: float = 0.0
    wait_sum: float = 0.0
    wait_max: float = 0.0
    measured: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    conduct: Conduct = field(default_factory=Conduct)
    distributions: Distributions | None = None
    pieces: dict[int, Figures] = field(default_factory=dict)

    @property
    def recent_loss(self) -> float | None:
        """Mean loss of its commits in the current interval of the history, or else its newest loss; None: no loss."""
        return self.loss_sum / self.losses if self.losses else self.loss

    @property
    def figures(self) -> Figures | None:
        """Those of this server; None before the first commit."""
        if self.statistics is None:
            return None
        kept = self.distributions
        return Figures(self.statistics, (kept.mean_pi, kept.blocked, kept.clamped) if kept is not None else ())
