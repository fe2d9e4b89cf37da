"""What one worker's commits did."""

from dataclasses import dataclass, field

from gem_core import Statistics
from gem_server.telemetry.histogram import STALENESS_BOUNDS, WAIT_BOUNDS, Histogram
from gem_server.telemetry.rate_meter import RateMeter

# Weight of the newest commit in the recent means: they tell of the last twenty or so.
NEWEST = 0.05


@dataclass(slots=True)
class Distributions:
    """What is kept of a worker only where telemetry is wanted."""

    staleness: Histogram = field(default_factory=lambda: Histogram(STALENESS_BOUNDS))
    wait: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    mean_pi: float = 0.0
    blocked: float = 0.0
    clamped: float = 0.0

    def add(self, statistics: Statistics, staleness: int, waited: float, weight: float = NEWEST) -> None:
        """Count one commit; `weight` of the first is 1, so that the means begin with it."""
        self.staleness.add(staleness)
        self.wait.add(waited)
        self.mean_pi += weight * (statistics.mean_pi - self.mean_pi)
        self.blocked += weight * (statistics.blocked_fraction - self.blocked)
        self.clamped += weight * (statistics.clamped_fraction - self.clamped)


@dataclass(slots=True)
class WorkerTelemetry:
    """Of one worker, over all its sessions of this server process; written by the applying task and the service.

    `measured` are the commits that the sums are over; waits are in seconds. `distributions` is None until there is a
    commit, and where they are not wanted.
    """

    rate: RateMeter = field(default_factory=RateMeter)
    refused: int = 0
    duplicates: int = 0
    staleness_last: int = 0
    staleness_sum: int = 0
    statistics: Statistics | None = None
    loss: float | None = None
    samples: int = 0
    wait_sum: float = 0.0
    wait_max: float = 0.0
    measured: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    distributions: Distributions | None = None
