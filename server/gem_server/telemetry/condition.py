"""What is wrong with a worker, in one word, from what the server has seen. For people: nothing follows from it."""

from collections.abc import Iterable
from enum import Enum
from statistics import median

from gem_server.telemetry.worker_telemetry import WorkerTelemetry

SILENT_SECONDS = 10.0
SLOW_FACTOR = 0.5
MUTED_BLOCKED = 0.98
MUTED_AFTER = 20  # commits: the recent means are about as many
ENOUGH_TO_COMPARE = 3  # workers that train


class Condition(Enum):
    """The first of these that holds.

    GONE: its session has expired, without a word of it. SILENT: it has one, and nothing was heard of it for
    SILENT_SECONDS: it computes for long, hangs, was killed, or is cut off from the network. SLOW: its commits come less
    than half as often as the median of all who train. MUTED: of its recent commits, nearly no element was applied,
    because others had moved the parameters on by then. WELL: none of these.
    """

    WELL = "well"
    SILENT = "silent"
    SLOW = "slow"
    MUTED = "muted"
    GONE = "gone"


def condition(
    *,
    has_expired: bool,
    trains: bool,
    silent_for: float,
    seen: WorkerTelemetry,
    rate: float,
    median_rate: float | None,
) -> Condition:
    """The condition of one worker.

    `trains`: it has a session, and budget left; `silent_for` is in seconds, rates in commits a second (None: there is
    nothing to compare with).
    """
    if has_expired:
        return Condition.GONE
    if not trains:
        return Condition.WELL
    if silent_for > SILENT_SECONDS:
        return Condition.SILENT
    if median_rate is not None and seen.measured and rate < SLOW_FACTOR * median_rate:
        return Condition.SLOW
    means = seen.distributions
    if means is not None and seen.measured >= MUTED_AFTER and means.blocked >= MUTED_BLOCKED:
        return Condition.MUTED
    return Condition.WELL


def median_rate(rates: Iterable[float]) -> float | None:
    """The median of the rates of those who train; None when they are too few to be compared."""
    known = list(rates)
    return median(known) if len(known) >= ENOUGH_TO_COMPARE else None
