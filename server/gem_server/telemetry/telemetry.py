"""Receives all measurements."""

from collections.abc import Callable

from gem_core import Layout, Statistics, UpdateRule
from gem_server.telemetry.first_batches import FirstBatches
from gem_server.telemetry.histogram import STALENESS_BOUNDS, WAIT_BOUNDS, Histogram
from gem_server.telemetry.history import History, Interval
from gem_server.telemetry.rate_meter import RateMeter
from gem_server.telemetry.run_totals import RunTotals
from gem_server.telemetry.tensor_pi import Sample, TensorPi
from gem_server.telemetry.worker_telemetry import Distributions, WorkerTelemetry

# Commits in a batch; 700 objects trigger the garbage collector.
MOST_NOTED = 256
# Between checks for a sample.
_LOOK_SECONDS = 0.01


class Telemetry:
    """Telemetry of one process. Times in seconds.

    `run_seconds`: training time; `measure`: sets an interval's gauges. `earlier`: sums over the commits of the run that
    earlier server processes applied, as far as they are known.
    """

    def __init__(
        self,
        rule: UpdateRule,
        clock: Callable[[], float],
        run_seconds: Callable[[], float],
        measure: Callable[[Interval], None],
    ) -> None:
        self._clock = clock
        self._run_seconds = run_seconds
        self._measure = measure
        self.rate = RateMeter()
        self.staleness = Histogram(STALENESS_BOUNDS)
        self.wait = Histogram(WAIT_BOUNDS)
        self.history = History()
        self.earlier = RunTotals()
        self.tensor_pi = TensorPi(rule)
        self.first_batches = FirstBatches()
        self._look_again = 0.0
        self._noted: list[tuple[WorkerTelemetry, Statistics, int, float, float | None, int]] = []

    @property
    def totals(self) -> RunTotals:
        """Sums over the commits of the whole run, of this server's range of the model."""
        self.settle()
        return self.earlier.plus(RunTotals.of(self.history.total))

    def sample(self, layout: Layout) -> Sample | None:
        """An observer for the next commit, if due."""
        if (now := self._clock()) < self._look_again:
            return None
        self._look_again = now + _LOOK_SECONDS
        return self.tensor_pi.due(self._run_seconds(), layout)

    def committed(
        self,
        seen: WorkerTelemetry,
        statistics: Statistics,
        *,
        staleness: int,
        waited: float,
        samples: int,
        local_steps: int,
        loss: float | None,
        sample: Sample | None,
        clock: int,
    ) -> None:
        """Record a commit that made version `clock`, after `waited` seconds."""
        now = self._clock()
        self.rate.record(now)
        seen.rate.record(now)
        seen.measured += 1
        seen.staleness_last = staleness
        seen.staleness_sum += staleness
        seen.statistics = statistics
        seen.wait_sum += waited
        if waited > seen.wait_max:
            seen.wait_max = waited
        seen.samples += samples
        seen.local_steps += local_steps
        if loss is not None:
            seen.loss = loss
        self._noted.append((seen, statistics, staleness, waited, loss, local_steps))
        if len(self._noted) >= MOST_NOTED:
            self.settle()
        if sample is not None:
            self.tensor_pi.add_sample(sample, self._run_seconds(), clock)

    def settle(self) -> None:
        """Call before reading distributions, histograms, curves."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        for seen, statistics, staleness, waited, loss, _ in noted:
            if loss is not None:
                seen.losses += 1
                seen.loss_sum += loss
            if seen.distributions is None:
                seen.distributions = Distributions()
                seen.distributions.record(statistics, staleness, waited, weight=1.0)
            else:
                seen.distributions.record(statistics, staleness, waited)
        _, all_statistics, all_staleness, waits, losses, local_steps = zip(*noted, strict=True)
        self.staleness.add_all(all_staleness)
        self.wait.add_all(waits)
        known = [loss for loss in losses if loss is not None]
        self.history.current.record(all_statistics, all_staleness, waits, known, local_steps)

    def tick(self) -> None:
        """Call a few times per second."""
        if self.history.is_over(self._run_seconds()):
            self.settle()
            self.history.close(self._run_seconds(), self._measure)

    def run_finished(self) -> None:
        """Close the last interval."""
        self.settle()
        if self.history.current.commits:
            self.history.close(self._run_seconds(), self._measure)
