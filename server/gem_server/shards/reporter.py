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
# In a report; others follow.
MAX_WORKERS = 64


class Reporter:
    """Reports at most once in INTERVAL_SECONDS, and when the run is finished."""

    def __init__(
        self, ordering: SecondaryOrder, central: CentralVariable, workers: Workers, telemetry: Telemetry
    ) -> None:
        self._ordering = ordering
        self._central = central
        self._workers = workers
        self._telemetry = telemetry
        self._reported_at = -math.inf
        self._reports = 0
        # By worker: number of its last report, commits then.
        self._reported: dict[str, tuple[int, int]] = {}

    def report_if_due(self, now: float) -> None:
        """Report if INTERVAL_SECONDS have passed since the last report; `now` in seconds."""
        if now - self._reported_at >= INTERVAL_SECONDS:
            self.report_now(now)

    def report_now(self, now: float) -> None:
        """Report the state, and workers that have committed, longest unreported first; `now` in seconds."""
        self._reported_at = now
        self._telemetry.settle()
        total = self._telemetry.history.total
        sums = tuple(getattr(total, name) for name in STATISTICS)
        report = self._ordering.report
        report(ShardState(self._central.clock, anonymous_bytes(), total.commits, sums, self._telemetry.totals))
        self._reports += 1
        workers = self._workers.by_rank()
        reported = {worker.name: self._reported.get(worker.name, (0, 0)) for worker in workers}
        changed = [worker for worker in workers if worker.telemetry.measured != reported[worker.name][1]]
        for worker in sorted(changed, key=lambda one: reported[one.name])[:MAX_WORKERS]:
            if (figures := worker.telemetry.figures) is not None:
                report(WorkerFigures(worker.name, figures))
            reported[worker.name] = self._reports, worker.telemetry.measured
        self._reported = reported
