"""The one object that is told what happened."""

from collections.abc import Callable

from gem_core import Layout, Statistics, UpdateRule
from gem_server.telemetry.histogram import STALENESS_BOUNDS, WAIT_BOUNDS, Histogram
from gem_server.telemetry.history import History, Interval
from gem_server.telemetry.rate_meter import RateMeter
from gem_server.telemetry.tensor_pi import Sample, TensorPi
from gem_server.telemetry.worker_telemetry import Distributions, WorkerTelemetry

# Commits that are noted, and counted later, all in one go: that takes less time than to count each as it comes. So few
# that what is kept for that does not call the garbage collector, which looks after 700 new objects.
MOST_NOTED = 256
# So often it is asked whether a sample is due.
_LOOK_SECONDS = 0.01


class Telemetry:
    """Of one run, in this server process.

    Args:
        rule: of the run.
        clock: in seconds.
        run_seconds: since training began; they stand still when the run is finished.
        measure: writes into an interval what is so at its end.
        is_wanted: False: count, and do nothing else.
    """

    def __init__(
        self,
        rule: UpdateRule,
        clock: Callable[[], float],
        run_seconds: Callable[[], float],
        measure: Callable[[Interval], None],
        *,
        is_wanted: bool,
    ) -> None:
        self._clock = clock
        self._run_seconds = run_seconds
        self._measure = measure
        self.is_wanted = is_wanted
        self.rate = RateMeter()
        self.staleness = Histogram(STALENESS_BOUNDS)
        self.wait = Histogram(WAIT_BOUNDS)
        self.history = History()
        self.tensor_pi = TensorPi(rule)
        self._look_again = 0.0
        self._noted: list[tuple[WorkerTelemetry, Statistics, int, float, float | None]] = []

    def sample(self, layout: Layout) -> Sample | None:
        """What shall look at the next commit before that is applied; None: nothing."""
        if not self.is_wanted or (now := self._clock()) < self._look_again:
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
        loss: float | None,
        sample: Sample | None,
        clock: int,
    ) -> None:
        """A commit of the worker that `seen` is of was applied and made version `clock`; it had `waited` seconds."""
        now = self._clock()
        self.rate.add(now)
        seen.rate.add(now)
        seen.measured += 1
        seen.staleness_last = staleness
        seen.staleness_sum += staleness
        seen.statistics = statistics
        seen.wait_sum += waited
        seen.wait_max = max(seen.wait_max, waited)
        seen.samples += samples
        if loss is not None:
            seen.loss = loss
        if not self.is_wanted:
            return
        self._noted.append((seen, statistics, staleness, waited, loss))
        if len(self._noted) >= MOST_NOTED:
            self.settle()
        if sample is not None:
            self.tensor_pi.take(sample, self._run_seconds(), clock)

    def settle(self) -> None:
        """Count what was only noted: whoever reads distributions, histograms or curves calls this first."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        for seen, statistics, staleness, waited, _ in noted:
            if seen.distributions is None:
                seen.distributions = Distributions()
                seen.distributions.add(statistics, staleness, waited, weight=1.0)
            else:
                seen.distributions.add(statistics, staleness, waited)
        _, all_statistics, all_staleness, waits, losses = zip(*noted, strict=True)
        self.staleness.add_all(all_staleness)
        self.wait.add_all(waits)
        known = [loss for loss in losses if loss is not None]
        self.history.current.add(all_statistics, all_staleness, waits, known)

    def tick(self) -> None:
        """Some time has passed; call it a few times a second."""
        if self.is_wanted and self.history.is_over(self._run_seconds()):
            self.settle()
            self.history.close(self._run_seconds(), self._measure)

    def run_finished(self) -> None:
        """No further commit will come."""
        self.settle()
        if self.history.current.commits:
            self.history.close(self._run_seconds(), self._measure)
