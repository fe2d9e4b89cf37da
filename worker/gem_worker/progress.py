"""Progress output of a worker."""

import json
import sys
import time
from typing import Literal, TextIO

from gem_worker.client import ClientEvent
from gem_worker.parameter_server import StepReport


class Progress:
    """Counts steps; writes events at once, progress every `interval` seconds (0: each step)."""

    def __init__(
        self, worker: str, interval: float, log_format: Literal["auto", "human", "json"], out: TextIO | None = None
    ) -> None:
        self._worker = worker
        self._interval = interval
        self._out = out or sys.stdout
        self._is_json = log_format == "json" or (log_format == "auto" and not self._out.isatty())
        self._started = self._told = time.monotonic()
        self._counted_from: tuple[float, int] | None = None
        self.applied = 0
        self.skipped = 0
        self.dropped = 0
        self._was_skipped = False
        self._samples = 0
        self._seconds = {"compute": 0.0, "copy": 0.0, "exchange": 0.0}

    def joined(self, rank: int, **fields: object) -> None:
        """Start the clock."""
        self._started = self._told = time.monotonic()
        self.write_line("joined", "", rank=rank, **fields)

    def event(self, event: ClientEvent) -> None:
        """Write a connection event."""
        self.write_line(event.kind.value, event.message)

    def step(self, report: StepReport, epoch: int) -> None:
        """Count a step; write progress when due."""
        self.applied += report.applied
        self.skipped += report.skipped
        self.dropped += not (report.applied or report.skipped)
        self._samples += report.samples
        self._seconds["compute"] += report.compute_seconds
        self._seconds["copy"] += report.copy_seconds
        self._seconds["exchange"] += report.exchange_seconds
        if report.skipped and not self._was_skipped:
            self.write_line("skipped", "the gradient is not finite: nothing was sent", skipped=self.skipped)
        self._was_skipped = report.skipped
        now = time.monotonic()
        if now - self._told >= self._interval:
            self._told = now
            self._report_step(report, epoch, self._rate(now))
        elif self._counted_from is None:
            self._rate(now)

    def _rate(self, now: float) -> float | None:
        before, self._counted_from = self._counted_from, (now, self.applied)
        if before is None or now <= before[0]:
            return None
        return (self.applied - before[1]) / (now - before[0])

    def _report_step(self, report: StepReport, epoch: int, rate: float | None) -> None:
        fields: dict[str, object] = {"step": self.applied, "epoch": epoch}
        if rate is not None:
            fields["steps_per_second"] = round(rate, 2)
        if report.loss is not None:
            fields["loss"] = round(report.loss, 5)
        if report.verdict is not None:
            fields["staleness"] = report.verdict.staleness
            fields["mean_pi"] = round(report.verdict.statistics.mean_pi, 4)
        if self._is_json:
            fields["applied"] = report.applied
            if report.verdict is not None:
                fields["sequence"] = report.verdict.sequence
                fields["incarnation"] = report.verdict.version.incarnation
                fields["clock"] = report.verdict.version.clock
                fields["duplicate"] = report.verdict.duplicate
        self.write_line("training", "", eta=report.eta, **fields)

    def summary(self, why: str) -> None:
        """Write totals."""
        seconds = time.monotonic() - self._started
        in_steps = sum(self._seconds.values()) or 1.0
        self.write_line(
            "ended",
            why,
            steps=self.applied,
            skipped=self.skipped,
            dropped=self.dropped,
            samples_per_second=round(self._samples / seconds, 1),
            seconds=round(seconds, 2),
            **{f"{name}_seconds": round(value, 3) for name, value in self._seconds.items()},
            **{f"{name}_percent": round(100 * value / in_steps, 1) for name, value in self._seconds.items()},
        )

    def write_line(self, event: str, message: str, **fields: object) -> None:
        """Write one line and flush."""
        if self._is_json:
            line = json.dumps(
                {"time": round(time.time(), 3), "worker": self._worker, "event": event, "message": message, **fields}
            )
        else:
            numbers = " ".join(f"{name}={value}" for name, value in fields.items())
            line = " ".join(filter(None, (f"[{self._worker}]", f"{event}:", message, numbers)))
        self._out.write(line + "\n")  # one write: another thread may write events
        self._out.flush()
