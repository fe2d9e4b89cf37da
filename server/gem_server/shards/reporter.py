"""A secondary's reports of its state."""

import math

from gem_server.process_memory import anonymous_bytes
from gem_server.shards.operations import ShardState, WorkerFigures
from gem_server.shards.secondary import SecondaryOrder
from gem_server.state.central_variable import CentralVariable
from gem_server.state.workers import Workers
from gem_server.telemetry.history import STATISTICS
from gem_server.telemetry.telemetry import Telemetry

INTERVAL_SECONDS = 1.0


class Reporter:
    """Reports to the primary at most once in INTERVAL_SECONDS, so that commits cost nothing more."""

    def __init__(
        self, ordering: SecondaryOrder, central: CentralVariable, workers: Workers, telemetry: Telemetry
    ) -> None:
        self._ordering = ordering
        self._central = central
        self._workers = workers
        self._telemetry = telemetry
        self._reported_at = -math.inf
        self._measured: dict[str, int] = {}

    def report_if_due(self, now: float) -> None:
        """Report the state, and figures of workers that have committed."""
        if now - self._reported_at < INTERVAL_SECONDS:
            return
        self._reported_at = now
        self._telemetry.settle()
        total = self._telemetry.history.total
        sums = tuple(getattr(total, name) for name in STATISTICS)
        report = self._ordering.report
        report(ShardState(self._central.clock, anonymous_bytes(), total.commits, sums))
        workers = self._workers.by_rank()
        for worker in workers:
            figures = worker.telemetry.figures
            if figures is not None and worker.telemetry.measured != self._measured.get(worker.name):
                report(WorkerFigures(worker.name, figures))
        self._measured = {worker.name: worker.telemetry.measured for worker in workers}
