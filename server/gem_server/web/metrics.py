"""/metrics for Prometheus; MAX_WORKERS bounds the series."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate

from aiohttp import web
from gemps.v1 import run_pb2, status_pb2
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gem_server.service.scrapes import Scrapes
from gem_server.service.status import PROBLEM_KINDS

MAX_WORKERS = 256

_LIVE = (status_pb2.WORKER_STATE_JOINED, status_pb2.WORKER_STATE_TRAINING, status_pb2.WORKER_STATE_FINISHED)
_STATES = {
    "waiting": run_pb2.RUN_STATE_WAITING,
    "training": run_pb2.RUN_STATE_TRAINING,
    "finished": run_pb2.RUN_STATE_FINISHED,
}
_CONDITIONS = {
    "well": status_pb2.WORKER_CONDITION_WELL,
    "silent": status_pb2.WORKER_CONDITION_SILENT,
    "slow": status_pb2.WORKER_CONDITION_SLOW,
    "muted": status_pb2.WORKER_CONDITION_MUTED,
    "gone": status_pb2.WORKER_CONDITION_GONE,
    "departed": status_pb2.WORKER_CONDITION_DEPARTED,
}


class Metrics:
    """Serves /metrics; encodes off the event loop."""

    def __init__(self, report: Callable[[], Awaitable[status_pb2.RunStatus]], scrapes: Scrapes) -> None:
        self._report = report
        self._scrapes = scrapes
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [web.get("/metrics", self._serve)]

    async def _serve(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry()
        async with self._one_at_a_time:
            started = self._scrapes.start()
            registry.register(_OfStatus(await self._report()))
            body = await asyncio.to_thread(_encoded, encode, registry)
            self._scrapes.answered(started)
        return web.Response(body=body, headers={"Content-Type": content_type})


class _OfStatus(Collector):
    def __init__(self, status: status_pb2.RunStatus) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """No names, which skips the registry's duplicate check."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _of_the_run(self._status)
        yield from _of_problems(self._status)
        yield from _of_the_server(self._status)
        if self._status.HasField("shards"):
            yield from _of_shards(self._status.shards)
        yield from _of_workers(self._status)


def _encoded(encode: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry) -> bytes:
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return encode(registry)


def _of_the_run(status: status_pb2.RunStatus) -> Iterator[Metric]:
    settings = status.settings
    yield InfoMetricFamily(
        "gemps",
        "What runs here.",
        {
            "version": status.server_version,
            "rule": settings.rule,
            "order": run_pb2.ServingOrder.Name(settings.order).removeprefix("SERVING_ORDER_").lower(),
            "durability": status.checkpoint.durability,
            **({"shard": f"{status.shards.index}/{status.shards.count}"} if status.HasField("shards") else {}),
        },
    )
    yield InfoMetricFamily("gemps_run", "The run's name and id.", {"name": status.run_name, "id": status.run_id})
    state = GaugeMetricFamily(
        "gemps_run_state", "1 for the state that the run is in, 0 for the others.", None, ["state"]
    )
    for name, number in _STATES.items():
        state.add_metric([name], float(status.run_state == number))
    yield state
    yield CounterMetricFamily(
        "gemps_commits", "Commits applied by this server process.", float(status.commits_of_process)
    )
    yield _gauge("gemps_clock_commits", "Commits applied over the whole run: the clock of the version.", status.commits)
    yield _gauge("gemps_run_seconds", "Seconds of training in this server process.", status.run_seconds)
    yield _gauge("gemps_learning_rate", "Eta for the next delta.", status.next_eta)
    yield _gauge("gemps_model_parameters", "Elements of all parameters of the model.", status.parameter_count)
    if status.HasField("loss"):
        yield _gauge(
            "gemps_training_loss", "Median over the workers of the loss of each one's newest commit.", status.loss
        )
    yield _gauge("gemps_pi_mean", "Mean factor of GEM over the newest commit of each worker.", status.mean_pi)
    yield _gauge(
        "gemps_blocked_ratio", "Fraction of elements that the newest commits could not move.", status.blocked_fraction
    )
    yield _gauge(
        "gemps_fairness_ratio",
        "Jain's index of the commits while all workers were there: 1 is fair.",
        status.jain_index,
    )
    for which, name in (("last", "last_evaluation"), ("best", "best_evaluation")):
        if status.HasField(name):
            seen = getattr(status, name)
            yield _gauge(f"gemps_evaluation_{which}_loss", f"Test loss of the {which} evaluation.", seen.loss)
            yield _gauge(
                f"gemps_evaluation_{which}_accuracy_ratio", f"Test accuracy of the {which} evaluation.", seen.accuracy
            )
    yield _histogram(
        "gemps_staleness_commits", "Commits applied since the snapshot of a commit's gradient.", status.staleness
    )
    yield _histogram("gemps_queue_wait_seconds", "From complete commit to applied.", status.wait)


_SEVERITIES = {
    status_pb2.PROBLEM_SEVERITY_WARNING: "warning",
    status_pb2.PROBLEM_SEVERITY_CRITICAL: "critical",
}


def _of_problems(status: status_pb2.RunStatus) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(
        "gemps_problems", "Problems there are now, of each kind; gemps status says more.", None, ["kind", "severity"]
    )
    counts = Counter((one.kind, one.severity) for one in status.problems)
    for kind in PROBLEM_KINDS:
        for number, severity in _SEVERITIES.items():
            gauge.add_metric([kind, severity], float(counts[kind, number]))
    yield gauge


def _of_the_server(status: status_pb2.RunStatus) -> Iterator[Metric]:
    queue, memory = status.queue, status.memory
    yield _gauge("gemps_uptime_seconds", "Since the server process started.", status.uptime_seconds)
    yield _gauge("gemps_queue_length", "Complete requests that wait to be served.", queue.length)
    yield _gauge("gemps_staging_buffers", "Staging buffers there are.", queue.staging_buffers)
    yield _gauge("gemps_staging_buffers_in_use", "Staging buffers in use.", queue.staging_buffers_in_use)
    yield _gauge("gemps_waiting_calls", "Calls that wait for a staging buffer.", queue.waiting)
    yield _gauge("gemps_memory_limit_bytes", "What vectors may take in all.", memory.limit_bytes)
    yield _gauge("gemps_memory_reserved_bytes", "What is promised of that.", memory.reserved_bytes)
    yield _gauge("gemps_memory_anonymous_bytes", "Anonymous memory of the process.", memory.anonymous_bytes)
    if status.checkpoint.path:
        yield _gauge(
            "gemps_checkpoint_age_seconds", "Since the newest checkpoint was written.", status.checkpoint.seconds_ago
        )


def _of_shards(shards: status_pb2.ShardsStatus) -> Iterator[Metric]:
    for field, name, text in (
        ("ready", "ready", "1 if the shard is connected, and has recovered."),
        ("clock", "clock_commits", "Commits that the shard has applied: the clock of its version."),
        ("anonymous_bytes", "memory_anonymous_bytes", "Anonymous memory of its process."),
    ):
        gauge = GaugeMetricFamily(f"gemps_shard_{name}", text, None, ["shard"])
        for shard in shards.servers:
            gauge.add_metric([str(shard.index)], float(getattr(shard, field)))
        yield gauge


def _of_workers(status: status_pb2.RunStatus) -> Iterator[Metric]:
    live = [worker for worker in status.workers if worker.state in _LIVE]
    yield _gauge("gemps_workers", "Workers with a session.", len(live))
    conditions = GaugeMetricFamily(
        "gemps_worker_conditions",
        "How many of the workers that are known are so; others than well and departed want a look.",
        None,
        ["condition"],
    )
    for name, number in _CONDITIONS.items():
        conditions.add_metric([name], float(sum(worker.condition == number for worker in status.workers)))
    yield conditions
    shown = live[:MAX_WORKERS]
    for field, name, text in (
        ("commits", "commits", "Commits applied, over all its sessions."),
        ("samples", "samples", "Training samples of its commits."),
        ("local_steps", "local_steps", "Steps in its commits."),
        ("refused", "refused_commits", "Commits refused."),
        ("duplicates", "duplicate_commits", "Repeats that were answered from the ledger."),
        ("scaled", "scaled_commits", "Deltas much larger than the others', which were scaled down or set to 0."),
        ("bytes_received", "received_bytes", "Payload received of it."),
        ("bytes_sent", "sent_bytes", "Payload sent to it."),
    ):
        counter = CounterMetricFamily(f"gemps_worker_{name}", text, None, ["worker"])
        for worker in shown:
            counter.add_metric([worker.name], float(getattr(worker, field)))
        yield counter
    for field, name, text in (
        ("staleness_last", "staleness_commits", "Staleness of its newest commit."),
        ("loss", "training_loss", "Loss of its newest commit."),
        ("recent_mean_pi", "pi_mean", "Mean factor over its last 20 commits or so."),
        ("recent_blocked_fraction", "blocked_ratio", "Fraction of elements blocked, over its last 20 commits or so."),
        ("wait_p99_seconds", "queue_wait_p99_seconds", "99 % of its commits waited no longer."),
        ("seconds_since_last_call", "silence_seconds", "Since it was heard of last."),
        ("quarantined", "quarantined", "1 if its deltas count as 0, until an operator ends that."),
    ):
        gauge = GaugeMetricFamily(f"gemps_worker_{name}", text, None, ["worker"])
        for worker in shown:
            if not worker.DESCRIPTOR.fields_by_name[field].has_presence or worker.HasField(field):
                gauge.add_metric([worker.name], float(getattr(worker, field)))
        yield gauge


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, float(value))


def _histogram(name: str, text: str, seen: status_pb2.Histogram) -> Metric:
    bounds = [*(f"{bound:g}" for bound in seen.bounds), "+Inf"]
    counts = [float(count) for count in accumulate(seen.counts)]
    return HistogramMetricFamily(name, text, list(zip(bounds, counts, strict=True)), seen.sum)
