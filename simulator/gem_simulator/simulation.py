"""Simulates a run, or follows a recorded one."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gem_worker.errors import DivergedError
from gem_worker.tasks import Task, create_task
from gem_worker.wire_names import WIRE_TYPES

from gem_core import Layout, PayloadFormat, UpdateRule, WireType, create_rule
from gem_core.buffers import default_buffers
from gem_simulator.cluster import BeforeRule, Cluster, Commit, ignore_delta
from gem_simulator.durations import Durations
from gem_simulator.errors import SimulationError
from gem_simulator.evaluation import Evaluation
from gem_simulator.events import Event
from gem_simulator.exchanges import EXCHANGES, ServiceExchange
from gem_simulator.network import WHOLE_PAYLOAD_BYTES, Links
from gem_simulator.recorded import Recorded
from gem_simulator.results import History, SimulationResult, peak_memory
from gem_simulator.settings import SimulationSettings
from gem_simulator.timeline import TimelineSettings, timeline
from gem_simulator.trace_recorder import TraceRecorder
from gem_simulator.workload import Delta, Workload, torch_as_it_was
from gem_trace.format import digest


def simulate(
    settings: SimulationSettings,
    *,
    rule: UpdateRule | None = None,
    task: Task | None = None,
    record: Path | None = None,
    on_commit: Callable[[Commit], None] = lambda commit: None,
    before_rule: BeforeRule = ignore_delta,
) -> SimulationResult:
    """Simulate a run.

    `rule` and `task` replace those of the settings; a rule object can serve only one simulation. `record` is the path
    of a trace to write, which needs the exchange `service`. `before_rule` is called with theta, the state of the rule
    (whose snapshot is s_w) and the delta, and must not change them. Raises SimulationError, RuleError or TaskError.
    """
    if not settings.has_end:
        raise SimulationError("there is no end: give --steps, --commits or --seconds")
    if record is not None and settings.exchange != "service":
        raise SimulationError(
            f"a trace holds what the service does, and the exchange is {settings.exchange}: leave --record out, or "
            "choose --exchange service"
        )
    rule = rule or create_rule(settings.rule, **settings.settings_of_rule())
    if settings.exchange == "paper" and (rule.vectors_per_run or not rule.sends_parameters):
        raise SimulationError(
            f"the rule {rule.name} needs the server to apply it, and with --exchange paper workers do: choose "
            "--exchange service"
        )
    task = task or create_task(settings.task, settings.task_options())
    wires = _wire_types(settings)
    with torch_as_it_was():
        workload = Workload(
            task,
            settings.model or task.default_model,
            settings.batch_size,
            settings.seed,
            *wires,
            rule.worker_step,
            settings.direction,
            settings.clip_norm,
        )
        recorder = TraceRecorder(record) if record is not None else None
        exchange = EXCHANGES[settings.exchange]
        cluster = Cluster(
            workload, rule, exchange, settings.eta, recorder.keep_delta if recorder else _ignore, before_rule
        )
        try:
            if recorder is not None:
                recorder.write_header(rule, _as_a_server_has_them(settings), cluster, workload.layout.describe(), wires)
            run = _Run(task, workload, cluster, settings.evaluate_every, recorder, on_commit)
            links = _links(settings, workload.layout) if settings.network_rate else None
            run.apply_events(timeline(_timing(settings, rule.worker_step.local_steps, links)))
            if recorder is not None:
                recorder.write_end(cluster)
        finally:
            if recorder is not None:
                recorder.close()
        used = settings.model_dump(mode="json")
        about = {"rule": rule.name, "rule_settings": dict(rule.settings)}
        return run.result(used | about)


def replay_recording(
    recorded: Recorded,
    *,
    task: Task,
    model: str = "",
    on_commit: Callable[[Commit], None] = lambda commit: None,
) -> SimulationResult:
    """Compute the gradients of a recorded run again, in its order.

    The deltas and the final parameters must be identical bit for bit. Raises SimulationError at the first difference.
    """
    with torch_as_it_was():
        rule = create_rule(recorded.rule, **recorded.rule_settings)
        workload = Workload(
            task,
            model or task.default_model,
            recorded.batch_size // rule.worker_step.local_steps,
            recorded.seed,
            recorded.delta_wire,
            recorded.parameter_wire,
            rule.worker_step,
            recorded.direction,
            recorded.clip_norm,
        )
        difference = recorded.layout.first_difference(workload.layout)
        if difference is not None:
            raise SimulationError(f"{recorded.path} is of another model: {difference}; name its --task and --model")
        compare = _Comparison(recorded)
        cluster = Cluster(workload, rule, ServiceExchange, recorded.eta, compare.compare)
        if cluster.parameters.tobytes() != recorded.parameters.tobytes():
            raise SimulationError(
                f"{recorded.path} begins with other parameters than the model has at seed {recorded.seed}: it was not "
                "trained by gemps work from the start, or with another version of torch"
            )
        run = _Run(task, workload, cluster, 0, None, on_commit)
        run.apply_events(recorded.events())
        used: dict[str, Any] = {"trace": str(recorded.path), "rule": rule.name, "rule_settings": dict(rule.settings)}
        used |= {"direction": recorded.direction, "clip_norm": recorded.clip_norm}
        used |= {"eta": recorded.eta, "seed": recorded.seed, "model": model or task.default_model}
        result = run.result(used | {"task": task.name, "batch_size": recorded.batch_size})
    if recorded.digest is not None and result.digest != recorded.digest:
        raise SimulationError(
            f"{recorded.path} ended with other parameters: SHA-256 {recorded.digest}, and the simulation has "
            f"{result.digest}"
        )
    return replace(result, compared_end=recorded.digest is not None)


class _Comparison:
    def __init__(self, recorded: Recorded) -> None:
        self._path = recorded.path
        self._payloads = recorded.payloads()
        self._clock = 1

    def compare(self, rank: int, delta: Delta) -> None:
        self._clock += 1
        recorded = next(self._payloads)
        size = delta.values.nbytes
        values = np.frombuffer(recorded[:size], np.float32)
        if delta.values.tobytes() != values.tobytes():
            index = int(np.argmax(delta.values.view(np.uint32) != values.view(np.uint32)))
            raise SimulationError(
                f"{self._path}: worker {rank} computed another delta for clock {self._clock}: element {index} was "
                f"{values[index]!r}, and is {delta.values[index]!r} in the simulation (its --task, --model, device, "
                "threads and version of torch must be the same)"
            )
        if delta.buffers != recorded[size:]:
            raise SimulationError(f"{self._path}: worker {rank} had other BUFFERs for clock {self._clock}")


class _Run:
    def __init__(
        self,
        task: Task,
        workload: Workload,
        cluster: Cluster,
        evaluate_every: int,
        recorder: TraceRecorder | None,
        on_commit: Callable[[Commit], None],
    ) -> None:
        self._task = task
        self._workload = workload
        self._cluster = cluster
        self._evaluate_every = evaluate_every
        self._recorder = recorder
        self._on_commit = on_commit
        self._history = History()
        self._evaluations: list[Evaluation] = []
        self._diverged = False

    def apply_events(self, events: Iterable[Event]) -> None:
        """Apply events until divergence."""
        for event in events:
            try:
                commit = self._cluster.apply(event)
            except DivergedError:
                self._diverged = True
                return
            if self._recorder is not None:
                self._recorder.record_event(event, commit)
            if commit is not None:
                self._history.add(commit)
                self._on_commit(commit)
                if self._evaluate_every and len(self._history) % self._evaluate_every == 0:
                    self._evaluations.append(self._evaluate(commit.at))

    def result(self, settings: dict[str, Any]) -> SimulationResult:
        at = float(self._history.column("at")[-1]) if len(self._history) else 0.0
        if not self._evaluations or self._evaluations[-1].commits != len(self._history):
            self._evaluations.append(self._evaluate(at))
        cluster = self._cluster
        return SimulationResult(
            self._workload.layout,
            cluster.parameters,
            cluster.buffers,
            digest(cluster.parameters, cluster.buffers),
            cluster.clock,
            self._history,
            self._evaluations,
            self._diverged,
            peak_memory(),
            settings,
            bits_per_character=self._task.bits_per_character(self._evaluations[-1].test_loss),
        )

    def _evaluate(self, at: float) -> Evaluation:
        central = self._cluster.parameters, self._cluster.buffers
        training_loss, _ = self._workload.score(self._task.train, *central)
        test_loss, accuracy = self._workload.score(self._task.test, *central)
        return Evaluation(len(self._history), at, training_loss, test_loss, accuracy)


def _ignore(rank: int, delta: Delta) -> None:
    """Ignore the delta."""


def _wire_types(settings: SimulationSettings) -> tuple[WireType, WireType]:
    """Return the wire types of deltas and of parameters."""
    return WIRE_TYPES[settings.delta_wire or "float32"], WIRE_TYPES[settings.parameter_wire or "float32"]


def _links(settings: SimulationSettings, layout: Layout) -> Links:
    """Return the workers' links to the server, which stand for the links to all shards."""
    delta, reply = (PayloadFormat(layout, wire).byte_count for wire in _wire_types(settings))
    vector = PayloadFormat(layout, WireType.FLOAT32).byte_count
    uploads = settings.staging_buffers
    if not uploads and delta > WHOLE_PAYLOAD_BYTES * settings.shards:
        uploads = default_buffers(vector // settings.shards)
    return Links(settings.network_rate * settings.shards, settings.network_rate, delta, reply, uploads)


def _timing(settings: SimulationSettings, gradients: int, links: Links | None) -> TimelineSettings:
    exchange = EXCHANGES[settings.exchange]
    return TimelineSettings(
        workers=settings.workers,
        compute=Durations(settings.compute_time),
        gradients=gradients,
        slower=settings.spans("slow"),
        network=settings.network_time,
        service=settings.service_time / settings.shards,
        joins=settings.spans("join"),
        deaths=settings.spans("die"),
        round_robin=settings.order == "round-robin",
        requests=exchange.requests,
        holds=exchange.holds,
        steps=settings.steps,
        commits=settings.commits,
        seconds=settings.seconds,
        seed=settings.seed,
        links=links,
    )


def _as_a_server_has_them(settings: SimulationSettings) -> dict[str, Any]:
    return {
        "eta": settings.eta,
        "eta_schedule": "constant",
        "steps": settings.steps,
        "epochs": 0,
        "commits": settings.commits,
        "order": settings.order,
        "min_workers": settings.workers,
        "seed": settings.seed,
        "direction": settings.direction,
        "clip_norm": settings.clip_norm,
    }
