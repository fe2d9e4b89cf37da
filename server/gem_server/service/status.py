"""GetStatus and WatchStatus; no session ids."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemps.v1 import run_pb2, status_pb2

from gem_core.median import median
from gem_server import __version__
from gem_server.durability.checkpointer import Checkpointer
from gem_server.errors import Reason, RefusedError
from gem_server.flow.request_queue import RequestQueue
from gem_server.flow.staging_pool import StagingPool
from gem_server.process_memory import anonymous_bytes
from gem_server.service import messages
from gem_server.service.call_context import CallContexts, Context
from gem_server.service.run_settings import RunSettingsMessages
from gem_server.service.shard_status import ShardList
from gem_server.state.central_variable import CentralVariable
from gem_server.state.evaluations import Evaluations
from gem_server.state.run import Run, RunState
from gem_server.state.sessions import Session, Sessions, TransportKind
from gem_server.state.workers import Worker, WorkerState
from gem_server.telemetry.condition import Condition, condition, median_rate
from gem_server.telemetry.histogram import Histogram
from gem_server.telemetry.problems import KINDS, Problem, Problems, Severity
from gem_server.telemetry.run_totals import RunTotals
from gem_server.telemetry.telemetry import Telemetry
from gem_server.telemetry.worker_telemetry import Figures, WorkerTelemetry

MIN_INTERVAL_SECONDS = 0.1
DEFAULT_INTERVAL_SECONDS = 1.0
MAX_WATCHERS = 64
UNREAD_SECONDS = 20.0
RETRY_SECONDS = 5.0
# A worker without a session stays in the status for so long after its last call, and the last so many stay.
DEPARTED_SECONDS = 3600.0
MOST_DEPARTED = 100

_WORKER_STATES = {
    WorkerState.JOINED: status_pb2.WORKER_STATE_JOINED,
    WorkerState.TRAINING: status_pb2.WORKER_STATE_TRAINING,
    WorkerState.FINISHED: status_pb2.WORKER_STATE_FINISHED,
    WorkerState.LEFT: status_pb2.WORKER_STATE_LEFT,
    WorkerState.EXPIRED: status_pb2.WORKER_STATE_EXPIRED,
    WorkerState.SUPERSEDED: status_pb2.WORKER_STATE_SUPERSEDED,
}
_CONDITIONS = {
    Condition.WELL: status_pb2.WORKER_CONDITION_WELL,
    Condition.SILENT: status_pb2.WORKER_CONDITION_SILENT,
    Condition.SLOW: status_pb2.WORKER_CONDITION_SLOW,
    Condition.MUTED: status_pb2.WORKER_CONDITION_MUTED,
    Condition.GONE: status_pb2.WORKER_CONDITION_GONE,
    Condition.DEPARTED: status_pb2.WORKER_CONDITION_DEPARTED,
}

PROBLEM_KINDS = KINDS
_SEVERITIES = {
    Severity.WARNING: status_pb2.PROBLEM_SEVERITY_WARNING,
    Severity.CRITICAL: status_pb2.PROBLEM_SEVERITY_CRITICAL,
}
_TRANSPORTS = {
    TransportKind.GRPC: status_pb2.TRANSPORT_KIND_GRPC,
    TransportKind.LANE: status_pb2.TRANSPORT_KIND_LANE,
    TransportKind.SHARED_MEMORY: status_pb2.TRANSPORT_KIND_SHARED_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Observed:
    """The reported components."""

    central: CentralVariable
    run: Run
    sessions: Sessions
    staging: StagingPool
    queue: RequestQueue
    evaluations: Evaluations
    telemetry: Telemetry
    checkpointer: Checkpointer | None
    durability: str
    run_settings: RunSettingsMessages
    run_seconds: Callable[[], float]
    uptime: Callable[[], float]
    shards: ShardList
    figures: Callable[[WorkerTelemetry], Figures | None]
    totals: Callable[[RunTotals], RunTotals]
    finished_since: Callable[[], float | None]
    time_left: Callable[[], float | None]
    problems: Problems


class Status:
    """Serves both calls."""

    def __init__(self, contexts: CallContexts, observed: Observed, clock: Callable[[], float]) -> None:
        self._contexts = contexts
        self._observed = observed
        self._clock = clock
        self.watchers = 0
        self._made = b"", False
        self._made_at = -math.inf

    async def get_status(self, raw: bytes, context: Context) -> bytes:
        """The status."""
        return await self._contexts.unary(context, lambda _: self._get(raw))

    async def watch(self, raw: bytes, context: Context) -> None:
        """Stream until the run is over, or with `stay` endlessly."""
        async with self._contexts.stream(context):
            request = messages.parse(status_pb2.WatchStatusRequest, raw)
            interval = request.interval_seconds or DEFAULT_INTERVAL_SECONDS
            if not interval >= MIN_INTERVAL_SECONDS:
                raise RefusedError(Reason.MALFORMED, f"interval_seconds must be at least {MIN_INTERVAL_SECONDS}")
            if self.watchers >= MAX_WATCHERS:
                raise RefusedError(
                    Reason.TOO_MANY,
                    f"{MAX_WATCHERS} callers watch already: use GetStatus now and then, or watch later",
                    retry_after=RETRY_SECONDS,
                )
            self.watchers += 1
            try:
                while True:
                    newest, is_over = await self._for_watchers()
                    await _send_report(context, newest)
                    if is_over and not request.stay:
                        return
                    await asyncio.sleep(interval)
                    self._contexts.check_access(context, "WatchStatus")  # a stream may outlive its token
            finally:
                self.watchers -= 1

    async def _for_watchers(self) -> tuple[bytes, bool]:
        if self._clock() - self._made_at >= MIN_INTERVAL_SECONDS:
            report = await self.report_when_durable()
            is_over = report.run_state == run_pb2.RUN_STATE_FINISHED and not len(self._observed.sessions)
            self._made = status_pb2.WatchStatusResponse(status=report).SerializeToString(), is_over
            self._made_at = self._clock()
        return self._made

    async def _get(self, raw: bytes) -> status_pb2.GetStatusResponse:
        messages.parse(status_pb2.GetStatusRequest, raw)
        return status_pb2.GetStatusResponse(status=self.report())

    async def report_when_durable(self, *, with_histograms: bool = False) -> status_pb2.RunStatus:
        """`report`, once durable."""
        report = self.report(with_histograms=with_histograms)
        await self._contexts.wait_durable()
        return report

    def report(self, *, with_histograms: bool = True) -> status_pb2.RunStatus:
        """Build the status; histograms can double its size."""
        seen, now = self._observed, self._clock()
        finished_since = seen.finished_since()
        trained_until = now if finished_since is None else finished_since
        seen.telemetry.settle()
        live = {session.worker.name: session for session in seen.sessions.live()}
        workers = seen.sessions.workers.by_rank()
        measured = [worker for worker in workers if worker.telemetry.measured]
        figures = {worker.name: seen.figures(worker.telemetry) for worker in workers}
        usual = median_rate(worker.telemetry.rate.rate(trained_until) for worker in measured if _trains(worker, live))
        report = status_pb2.RunStatus(
            server_version=__version__,
            version=messages.version_to(seen.central.version),
            run_state=messages.RUN_STATES[seen.run.state],
            settings=seen.run_settings.for_people,
            rule=seen.run_settings.rule,
            run_name=seen.run.name,
            run_id=seen.run.identity,
            run_seconds=seen.run_seconds(),
            uptime_seconds=seen.uptime(),
            commits=seen.run.commits,
            commits_of_process=seen.run.commits_of_process,
            commits_per_second=seen.telemetry.rate.rate(trained_until),
            next_eta=seen.run.next_eta,
            jain_index=seen.sessions.fairness.index(session.worker for session in live.values()),
            workers=[
                _worker(worker, live.get(worker.name), figures[worker.name], now, trained_until, usual, with_histograms)
                for worker in self._shown(workers, live, trained_until)
            ],
            queue=self._queue(),
            memory=self._memory(),
            checkpoint=self._checkpoint(now),
            missing_workers=self._count_missing(),
            seconds_left=seen.time_left(),
        )
        _put_figures(self._counted_workers(measured, live), figures, report)
        _put_waits(seen.telemetry, report)
        _put_means(seen.totals(seen.telemetry.totals), report)
        self._put_layout(report)
        self._put_evaluations(report)
        _put_problems(seen.problems.newest, now, report)
        seen.shards.add_to(report)
        return report

    def _shown(self, workers: list[Worker], live: Mapping[str, Session], trained_until: float) -> list[Worker]:
        """Return the workers in the report: those with a session, and others for some time after their last call.

        Those that have spent their budgets stay: they have done their part of the run. Of a run that is finished, those
        stay that were shown then. A worker of a run that was resumed counts from this process's start.
        """
        started = self._clock() - self._observed.uptime()
        departed = [one for one in workers if one.name not in live and not one.done and one.last_call < trained_until]
        newest = sorted(departed, key=lambda worker: worker.last_call, reverse=True)[:MOST_DEPARTED]
        gone = {one.name for one in departed} - {
            one.name for one in newest if trained_until - max(one.last_call, started) <= DEPARTED_SECONDS
        }
        return [one for one in workers if one.name not in gone]

    def _counted_workers(self, measured: list[Worker], live: Mapping[str, Session]) -> list[Worker]:
        """Return the workers that the run's figures are about.

        They are the live ones. Figures of a finished run do not change because its workers leave one by one. When
        nobody of these is left, they are all that were ever measured.
        """
        is_over = self._observed.run.state is RunState.FINISHED
        stay = [one for one in measured if one.name in live or (is_over and one.state is not WorkerState.EXPIRED)]
        return stay or measured

    def _queue(self) -> status_pb2.QueueStatus:
        staging = self._observed.staging
        return status_pb2.QueueStatus(
            length=len(self._observed.queue),
            staging_buffers=staging.capacity,
            staging_buffers_in_use=staging.capacity - staging.free,
            waiting=staging.waiting,
            waiting_limit=staging.waiting_limit,
        )

    def _memory(self) -> status_pb2.MemoryStatus:
        layout, memory = self._observed.central.layout, self._observed.sessions.memory
        return status_pb2.MemoryStatus(
            limit_bytes=memory.limit,
            reserved_bytes=memory.reserved,
            worker_bytes=memory.worker_bytes(layout) if layout else 0,
            anonymous_bytes=anonymous_bytes(),
        )

    def _put_layout(self, report: status_pb2.RunStatus) -> None:
        layout = self._observed.central.layout
        if layout is not None:
            report.parameter_count = layout.whole.parameter_count
            report.tensor_count = len(layout.whole.tensors)
            report.layout_digest = layout.whole.digest

    def _put_evaluations(self, report: status_pb2.RunStatus) -> None:
        evaluations = self._observed.evaluations
        if evaluations.newest is not None:
            report.last_evaluation.CopyFrom(messages.evaluation_to(evaluations.newest))
        if evaluations.best is not None:
            report.best_evaluation.CopyFrom(messages.evaluation_to(evaluations.best))

    def _count_missing(self) -> int:
        seen = self._observed
        if seen.run.state is not RunState.WAITING:
            return 0
        return max(0, seen.run.wanted_workers - seen.sessions.count_present())

    def _checkpoint(self, now: float) -> status_pb2.CheckpointStatus:
        writer = self._observed.checkpointer
        observed = self._observed
        status = status_pb2.CheckpointStatus(durability=observed.durability)
        if writer is None:
            return status
        if writer.newest is not None:
            status.path = str(writer.newest)
            status.seconds_ago = now - writer.written_at
        if writer.newest_version is not None:
            status.version.CopyFrom(messages.version_to(writer.newest_version))
        return status


async def _send_report(context: Context, message: bytes) -> None:
    try:
        async with asyncio.timeout(UNREAD_SECONDS):
            await context.write(message)
    except TimeoutError:
        raise RefusedError(
            Reason.STALLED,
            f"no status was read for {UNREAD_SECONDS:g} s: watch again, and read",
            retry_after=RETRY_SECONDS,
        ) from None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _trains(worker: Worker, live: Mapping[str, Session]) -> bool:
    return worker.state is WorkerState.TRAINING and worker.name in live


def _worker(
    worker: Worker,
    session: Session | None,
    figures: Figures | None,
    now: float,
    trained_until: float,
    usual: float | None,
    with_histograms: bool,
) -> status_pb2.WorkerStatus:
    seen = worker.telemetry
    silent_for = session.silent_for(now) if session is not None else max(0.0, now - worker.last_call)
    rate = seen.rate.rate(trained_until)
    found = condition(
        has_expired=worker.state is WorkerState.EXPIRED,
        has_session=session is not None,
        trains=session is not None and worker.state is not WorkerState.FINISHED,
        silent_for=silent_for,
        seen=seen,
        blocked=figures.recent[1] if figures is not None and figures.recent else None,
        rate=rate,
        median_rate=usual,
    )
    status = status_pb2.WorkerStatus(
        name=worker.name,
        host_id=worker.host_id,
        rank=worker.rank,
        host_rank=worker.host_rank,
        state=_WORKER_STATES[worker.state],
        agent=worker.agent,
        device=worker.device,
        host_name=worker.host_name,
        engine=worker.engine,
        commits=worker.commits,
        refused=seen.refused,
        duplicates=seen.duplicates,
        sessions=worker.sessions,
        commits_per_second=rate,
        staleness_last=seen.staleness_last,
        staleness_mean=seen.staleness_sum / max(1, seen.measured),
        samples=seen.samples,
        local_steps=seen.local_steps,
        wait_mean_seconds=seen.wait_sum / max(1, seen.measured),
        wait_max_seconds=seen.wait_max,
        bytes_received=seen.bytes_received,
        bytes_sent=seen.bytes_sent,
        seconds_since_last_call=silent_for,
        shares_memory=session is not None and session.shares_memory,
        condition=_CONDITIONS[found],
        scaled=worker.scaled,
        quarantined=worker.quarantined,
    )
    _put_distributions(seen, status, with_histograms)
    if seen.loss is not None:
        status.loss = seen.loss
    if figures is not None:
        messages.put_statistics(figures.newest, status.statistics)
        if figures.recent:
            recent = figures.recent
            status.recent_mean_pi, status.recent_blocked_fraction, status.recent_clamped_fraction = recent
    if worker.wire_types is not None:
        deltas, parameters = worker.wire_types
        status.delta_wire_type, status.parameter_wire_type = int(deltas), int(parameters)  # type: ignore[assignment]
    if session is not None and session.transport is not None:
        status.transport = _TRANSPORTS[session.transport]
    if session is not None and session.held is not None:
        status.snapshot_version.CopyFrom(messages.version_to(session.held.snapshot.version))
    return status


def _put_distributions(seen: WorkerTelemetry, status: status_pb2.WorkerStatus, with_histograms: bool) -> None:
    kept = seen.distributions
    if kept is None:
        return
    if with_histograms:
        _put_histogram(kept.staleness, status.staleness)
        _put_histogram(kept.wait, status.wait)
    status.staleness_p99 = kept.staleness.quantile(0.99)
    status.wait_p50_seconds = kept.wait.quantile(0.5)
    status.wait_p99_seconds = kept.wait.quantile(0.99)


def _put_figures(workers: list[Worker], figures: Mapping[str, Figures | None], report: status_pb2.RunStatus) -> None:
    """Put means over `workers`: of staleness, of what the rule did with their newest commits; and the median loss."""
    statistics = [found.newest for worker in workers if (found := figures[worker.name]) is not None]
    report.staleness_mean = _mean([float(worker.telemetry.staleness_last) for worker in workers])
    report.mean_pi = _mean([one.mean_pi for one in statistics])
    report.blocked_fraction = _mean([one.blocked_fraction for one in statistics])
    report.clamped_fraction = _mean([one.clamped_fraction for one in statistics])
    loss = median(worker.telemetry.loss for worker in workers if worker.telemetry.loss is not None)
    if loss is not None:
        report.loss = loss


def _put_waits(telemetry: Telemetry, report: status_pb2.RunStatus) -> None:
    _put_histogram(telemetry.staleness, report.staleness)
    _put_histogram(telemetry.wait, report.wait)
    report.wait_p50_seconds = telemetry.wait.quantile(0.5)
    report.wait_p99_seconds = telemetry.wait.quantile(0.99)


def _put_problems(problems: list[Problem], now: float, report: status_pb2.RunStatus) -> None:
    for problem in problems:
        found = problem.finding
        report.problems.add(
            kind=found.kind,
            text=found.text,
            workers=found.workers,
            severity=_SEVERITIES[found.severity],
            seconds=now - problem.since,
            fix=found.fix,
        )


def _put_means(totals: RunTotals, report: status_pb2.RunStatus) -> None:
    if not totals.commits:
        return
    report.means.commits = totals.commits
    report.means.staleness_mean = totals.staleness / totals.commits
    report.means.mean_pi, report.means.blocked_fraction, report.means.clamped_fraction = totals.means


def _put_histogram(histogram: Histogram, message: status_pb2.Histogram) -> None:
    message.bounds.extend(histogram.bounds)
    message.counts.extend(histogram.counts)
    message.sum = histogram.total
