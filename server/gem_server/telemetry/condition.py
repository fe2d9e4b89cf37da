"""A worker's condition, for display only."""

from collections.abc import Iterable
from enum import Enum
from statistics import median

from gem_server.telemetry.worker_telemetry import WorkerTelemetry

SILENT_SECONDS = 10.0
SLOW_FACTOR = 0.5
MUTED_BLOCKED = 0.98
MUTED_AFTER = 20  # commits; recent means span about as many
ENOUGH_TO_COMPARE = 3  # workers that train


class Condition(Enum):
    """The first that holds.

    GONE: expired. DEPARTED: without a session for another reason. SILENT: no contact for SILENT_SECONDS. SLOW: below
    half the median rate. MUTED: recent commits had hardly any effect.
    """

    WELL = "well"
    SILENT = "silent"
    SLOW = "slow"
    MUTED = "muted"
    GONE = "gone"
    DEPARTED = "departed"


def condition(
    *,
    has_expired: bool,
    has_session: bool,
    trains: bool,
    silent_for: float,
    seen: WorkerTelemetry,
    blocked: float | None,
    rate: float,
    median_rate: float | None,
) -> Condition:
    """A worker's condition.

    `trains`: joined, with budget left. `silent_for` in seconds, rates in commits per second. `blocked`: recent share.
    """
    if has_expired:
        return Condition.GONE
    if not has_session:
        return Condition.DEPARTED
    if not trains:
        return Condition.WELL
    if silent_for > SILENT_SECONDS:
        return Condition.SILENT
    if median_rate is not None and seen.measured and rate < SLOW_FACTOR * median_rate:
        return Condition.SLOW
    if blocked is not None and seen.measured >= MUTED_AFTER and blocked >= MUTED_BLOCKED:
        return Condition.MUTED
    return Condition.WELL


def median_rate(rates: Iterable[float]) -> float | None:
    """The training workers' median; None if too few."""
    known = list(rates)
    return median(known) if len(known) >= ENOUGH_TO_COMPARE else None
