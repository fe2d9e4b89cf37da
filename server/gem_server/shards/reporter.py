"""A secondary's reports of its state."""

import math

from gem_server.process_memory import anonymous_bytes
from gem_server.shards.operations import ShardState
from gem_server.shards.secondary import SecondaryOrder
from gem_server.state.central_variable import CentralVariable

INTERVAL_SECONDS = 1.0


class Reporter:
    """Reports to the primary at most once in INTERVAL_SECONDS, so that commits cost nothing more."""

    def __init__(self, ordering: SecondaryOrder, central: CentralVariable) -> None:
        self._ordering = ordering
        self._central = central
        self._reported_at = -math.inf

    def tick(self, now: float) -> None:
        """Report, if it is time."""
        if now - self._reported_at < INTERVAL_SECONDS:
            return
        self._reported_at = now
        self._ordering.report(ShardState(self._central.clock, anonymous_bytes()))
