"""Statistics of the whole model, from those of its shards."""

from collections.abc import Callable, Iterable

from gem_core import Layout, Statistics
from gem_core.shards import Shard, combined
from gem_server.shards.operations import ShardState, WorkerFigures
from gem_server.state.workers import Workers
from gem_server.telemetry.history import STATISTICS, Interval
from gem_server.telemetry.run_totals import RunTotals, of_whole_model
from gem_server.telemetry.worker_telemetry import Figures, WorkerTelemetry


class WholeStatistics:
    """Combines reports of the other `count` - 1 shards with this one's statistics."""

    def __init__(self, count: int, workers: Workers, layout: Callable[[], Layout | None]) -> None:
        self._count = count
        self._workers = workers
        self._layout = layout
        self._newest: dict[int, ShardState] = {}
        self._before: dict[int, ShardState] = {}
        self._means: dict[int, list[float]] = {}

    def keep(self, index: int, report: ShardState | WorkerFigures) -> None:
        """Keep a shard's report."""
        if isinstance(report, ShardState):
            self._newest[index] = report
        elif (worker := self._workers.get(report.worker_name)) is not None:
            worker.telemetry.pieces[index] = report.figures

    def figures(self, seen: WorkerTelemetry) -> Figures | None:
        """Return a worker's figures."""
        own = seen.figures
        if own is None or not seen.pieces:
            return own
        pieces = {0: own, **seen.pieces}
        elements = self._elements(pieces)
        recent = [one.recent for one in pieces.values()]
        return Figures(
            Statistics(*combined([one.newest for one in pieces.values()], elements)),
            tuple(combined(recent, elements)) if all(recent) else (),
        )

    def totals(self, own: RunTotals) -> RunTotals:
        """Return the sums over the run's commits for the whole model; `own`: those of this shard's range."""
        pieces = {0: own} | {index: report.totals for index, report in self._newest.items()}
        return of_whole_model(list(pieces.values()), self._elements(pieces)) if own.commits else own

    def complete(self, interval: Interval) -> None:
        """Make the statistics of an interval's commits those of all shards; of norms, combine the means."""
        if not interval.commits:
            return
        for index, newest in self._newest.items():
            before = self._before.get(index, ShardState(sums=(0.0,) * len(STATISTICS)))
            if commits := newest.commits - before.commits:
                self._means[index] = [
                    (to - since) / commits for to, since in zip(newest.sums, before.sums, strict=True)
                ]
                self._before[index] = newest
        own = [getattr(interval, name) / interval.commits for name in STATISTICS]
        means = {0: own, **self._means}
        for name, mean in zip(STATISTICS, combined(list(means.values()), self._elements(means)), strict=True):
            setattr(interval, name, interval.commits * mean)

    def _elements(self, indices: Iterable[int]) -> list[int]:
        layout = self._layout()
        if layout is None:
            raise AssertionError("commits without a model")
        ranges = [Shard(index, self._count).range_of(layout.whole.parameter_count) for index in indices]
        return [held.stop - held.start for held in ranges]
