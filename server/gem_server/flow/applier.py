"""The applying task. Parallel kernels must be launched from one thread."""

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import numpy as np

from gem_core import Layout, UpdateRule
from gem_core.selection import Selection
from gem_core.thresholds import COPY_ELSEWHERE_ELEMENTS
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import Call
from gem_server.flow.journal import Journal
from gem_server.flow.observer import CommitObserver
from gem_server.flow.reader import Reader, superseded_by_newer_call
from gem_server.flow.request_queue import QueueClosedError, RequestQueue
from gem_server.flow.requests import (
    AnyRequest,
    Applied,
    CommitRequest,
    CutRequest,
    ForgetRequest,
    InitializeRequest,
    PullRequest,
    SharedPullRequest,
    SnapshotRequest,
    Unchanged,
)
from gem_server.flow.shared_snapshots import SharedSnapshots
from gem_server.flow.staging_pool import StagingPool
from gem_server.peer_log import PeerLog
from gem_server.state.buffers import Buffers, with_commit
from gem_server.state.central_variable import CentralVariable, Snapshot
from gem_server.state.delta_bound import DeltaBound, Judgement
from gem_server.state.kept_rule import KeptRule, copy_rule, rule_record
from gem_server.state.ledger import Verdict, record
from gem_server.state.recipe import RunRecipe
from gem_server.state.run import Run
from gem_server.state.sessions import Session, Sessions
from gem_server.state.worker_snapshot import WorkerSnapshot
from gem_server.state.workers import WorkerState
from gem_server.telemetry.pace import Pace
from gem_server.telemetry.recent_commits import REMEMBERED
from gem_server.telemetry.telemetry import Telemetry
from gem_server.telemetry.worker_telemetry import WorkerTelemetry

Result = TypeVar("Result")


class Applier:
    """Serves requests in the queue's order; alone writes central variable, snapshots and ledger meanwhile."""

    def __init__(
        self,
        *,
        central: CentralVariable,
        rule: UpdateRule,
        recipe: RunRecipe,
        run: Run,
        sessions: Sessions,
        staging: StagingPool,
        queue: RequestQueue,
        kernel_thread: Executor,
        clock: Callable[[], float],
        stall_timeout: float,
        telemetry: Telemetry,
        journal: Journal,
        observer: CommitObserver,
        peer_log: PeerLog,
        bound: DeltaBound,
    ) -> None:
        self._central = central
        self._rule = rule
        self._recipe = recipe
        self._run = run
        self._sessions = sessions
        self._staging = staging
        self._queue = queue
        self._kernel_thread = kernel_thread
        self._clock = clock
        self._telemetry = telemetry
        self._pace = Pace(clock)
        self._journal = journal
        self._observer = observer
        self._peer_log = peer_log
        self._bound = bound
        self.shared = SharedSnapshots(central, clock, stall_timeout)
        self.on_commit: list[Callable[[], None]] = []

    def submit(self, request: AnyRequest) -> None:
        """Enqueue a complete request."""
        request.enqueued_at = self._clock()
        self._queue.put(request)

    def session_ended(self, session: Session) -> None:
        """Enqueue a ForgetRequest if the rule needs it."""
        if self._rule.vectors_per_run:
            self.submit(ForgetRequest(session))

    async def serve_until_closed(self) -> None:
        """Serve until the queue is closed and empty.

        A refusal goes to the caller; any other error also ends this task.
        """
        while True:
            try:
                request = await self._queue.get()
            except QueueClosedError:
                return
            try:
                await request.serve(self)
            except RefusedError as refusal:
                request.fail(refusal)
            except Exception as error:
                request.fail(error)
                raise
            if not isinstance(request, CommitRequest):  # releasing a commit's buffer dispatches
                self._staging.dispatch()
            del request  # free its session

    async def apply_commit(self, request: CommitRequest) -> None:
        """Apply a commit."""
        session, worker, entry = request.session, request.session.worker, request.session.entry
        buffer = request.hold.buffer
        held = session.held
        if buffer is None or held is None or request.sequence != entry.last_applied + 1:
            raise AssertionError("a commit that is not the next one entered the queue")
        self._end_reader(session)
        snapshot = held.snapshot
        await self._journal.begin(snapshot)
        central, rule, delta = self._central, self._rule, buffer.parameters
        staleness, eta, decays = central.clock - request.base.clock, request.eta, request.decays
        waited = self._clock() - request.enqueued_at
        if (factor := self._judge(request)) != 1:
            await self._maybe_elsewhere(partial(np.multiply, delta, np.float32(factor), out=delta))
        snapshot.will_change()
        sample = self._telemetry.sample(session.join_info.layout)
        if rule.is_parallel(delta.size):
            statistics = await self._elsewhere(
                lambda: held.commit(central, rule, delta, staleness, eta, decays, sample)
            )
        else:
            statistics = held.commit(central, rule, delta, staleness, eta, decays, sample)
        buffers, has = central.buffers, frozenset[int]()
        if request.payload is not None and not request.withheld:
            buffers, has = with_commit(buffers, request.payload, buffer.rest, central.clock + 1)
        await self._observer.committed(session, request, central.clock + 1, staleness, statistics, buffers)
        version = central.advance(buffers)
        snapshot.becomes(version, central.buffers)
        session.queued_sequence = 0
        session.queued_commit = None
        self._staging.release(request.hold)
        if worker.state is WorkerState.JOINED:
            worker.state = WorkerState.TRAINING
        self._telemetry.committed(
            worker.telemetry,
            statistics,
            staleness=staleness,
            waited=waited,
            samples=request.samples,
            local_steps=max(1, request.local_steps),
            loss=request.loss,
            sample=sample,
            clock=version.clock,
        )
        worker.telemetry.conduct.committed(
            request.content,
            is_zero=not statistics.delta_norm,
            is_loss_finite=None if request.loss is None else math.isfinite(request.loss),
        )
        self._run.applied(worker)
        if self._recipe.recipe is not None:
            self._run.own_eta = eta
        verdict = Verdict(
            request.sequence,
            version,
            staleness,
            statistics,
            self._run.state_for(worker),
            self._run.next_eta,
            relative_speed=self._relative_speed(request),
            progress=self._run.progress,
            withheld=request.withheld,
        )
        session.eta = verdict.next_eta
        record(entry, request.content, verdict)
        request.was_applied()
        if worker.done:
            self._sessions.fairness.going(self._sessions.live_workers())
            worker.state = WorkerState.FINISHED if session.ended is None else worker.state
            self._sessions.consider_finish()
            self._queue.sessions_changed()
        await self._journal.committed(request, verdict, self._run, lambda: self._result(snapshot))
        for listener in self.on_commit:
            listener()
        reader = None
        if session.ended is None and not request.done.done():
            reader = self._open_reader(session, snapshot, request.call)
        request.resolve(Applied(verdict, reader, _missing(request, buffers, has)))
        if session.ended is not None:
            await self.forget(session)

    def _judge(self, request: CommitRequest) -> float:
        """Return the factor of a commit's delta, and log what begins with it."""
        session, worker = request.session, request.session.worker
        judgement = Judgement()
        if request.norm is not None:
            judgement = self._bound.judge(worker, request.norm, request.eta, has_session=session.ended is None)
        request.withheld |= worker.quarantined and not judgement.begins_quarantine
        if request.withheld:
            return 0.0
        if judgement.factor != 1:
            line = (
                f"worker {worker.name}, sequence {request.sequence}: its delta was {judgement.excess:.3g} times as "
                "large as the median of the others', and is scaled down to it (limits.delta_norm)"
            )
            self._peer_log.log("delta-scaled", worker.name, line, level=logging.WARNING, worker=worker.name)
        if judgement.begins_quarantine:
            line = (
                f"worker {worker.name} is quarantined: half of its last {REMEMBERED} deltas were too large, so its "
                f"deltas count as 0 from now on; repair it, and end that by gemps readmit {worker.name}"
            )
            self._peer_log.log("quarantined", worker.name, line, level=logging.WARNING, worker=worker.name)
        return judgement.factor

    def _relative_speed(self, request: CommitRequest) -> float:
        seen, steps = request.session.worker.telemetry, request.local_steps
        if not steps:
            return 0.0

        def training() -> list[WorkerTelemetry]:
            return [one.telemetry for one in self._sessions.live_workers() if one.state is WorkerState.TRAINING]

        return self._pace.relative_speed(seen, steps, request.hold.asked_at, training)

    async def _result(self, snapshot: Snapshot) -> tuple[Snapshot, KeptRule]:
        """Unchanged until the worker's next commit."""
        central, kept = self._central, await self._copy_rule()
        if self._rule.sends_parameters:
            return snapshot, kept
        parameters = await self._maybe_elsewhere(central.parameters.copy)
        return Snapshot(parameters, central.version, central.buffers), kept

    async def _copy_rule(self) -> KeptRule:
        rule, central = self._rule, self._central
        if not rule.kept_vectors:
            return KeptRule(rule_record(rule))
        return await self._maybe_elsewhere(lambda: copy_rule(rule, central.parameters))

    async def forget(self, session: Session) -> None:
        """Remove an ended session's worker from the rule."""
        held = session.held
        if held is None or session.queued_sequence or not self._rule.vectors_per_run:
            return
        session.held = None
        await self._maybe_elsewhere(lambda: held.forget(self._rule))
        self._observer.forgotten(session)

    async def pull(self, request: PullRequest) -> None:
        """Replace the session's snapshot, and open a reader of it."""
        session = request.session
        session.check_alive()
        self._sessions.check_layout(session)
        await self.refresh(session)
        if request.known_version == self._central.version and self._rule.sends_parameters:
            request.resolve(Unchanged(self._central.version))
        else:
            self._open_newest(request, session)

    def _open_newest(self, request: PullRequest | SnapshotRequest, session: Session) -> None:
        if session.held is None or request.done.done():
            return
        self._end_reader(session)
        request.resolve(self._open_reader(session, session.held.snapshot, request.call))

    async def refresh(self, session: Session) -> None:
        """Update the newest snapshot; keep the moment."""
        self._end_reader(session)
        central, held = self._central, session.held
        is_changed = True
        if held is None:
            state = await self._maybe_elsewhere(lambda: self._rule.new_worker(central.parameters))
            session.worker.telemetry.committed_at = None  # the absence is no step
            session.held = WorkerSnapshot(state, central.version, central.buffers)
            self._log_reset(session)
        elif held.snapshot.version != central.version:
            await self._journal.wait_unread(held.snapshot)
            held.snapshot.will_change()
            await self._maybe_elsewhere(lambda: held.refresh(central, self._rule))
            held.snapshot.becomes(central.version, central.buffers)
        else:
            is_changed = False
        await self._share(session)
        if is_changed:
            self._observer.pulled(session, is_first=held is None)

    async def _share(self, session: Session) -> None:
        held, regions = session.held, session.regions
        if held is not None and regions is not None and held.snapshot.published is None:
            place = regions.snapshot
            await self._maybe_elsewhere(lambda: held.move(place))

    def _log_reset(self, session: Session) -> None:
        if session.worker.commits:
            name, clock = session.worker.name, self._central.clock
            line = f"worker {name} continues at clock {clock}, with a moment of 0"
            self._peer_log.log("joined-again", name, line, worker=name, clock=clock)

    async def read_snapshot(self, request: SnapshotRequest) -> None:
        """Open a reader of the session's snapshot, or of theta."""
        session = request.session
        session.check_alive()
        known = session.held.snapshot.version if session.held else None
        if request.version not in (None, known):
            raise RefusedError(
                Reason.STALE_BASE,
                "the session's snapshot is no longer of the version to continue: pull from the start",
            )
        if session.held is None:
            await self.refresh(session)
        self._open_newest(request, session)

    async def keep_theta(self) -> Reader:
        """Open a reader for a call that will come. Raises TOO_MANY."""
        return await self._open_shared(None)

    async def pull_shared(self, request: SharedPullRequest) -> None:
        """Open a reader for a caller without a session."""
        central = self._central
        if request.known_version == central.version:
            request.resolve(Unchanged(central.version))
            return
        if request.kept is None:
            reader = await self._open_shared(request.call)
            self._observer.pulled_without_session(central.version)
        elif (found := self.shared.open(request.call, request.kept)) is not None:
            reader = found
        else:
            raise RefusedError(
                Reason.STALE_BASE, f"clock {request.kept.clock} is not kept any more: pull from the primary again"
            )
        if not request.resolve(reader):
            reader.close()

    async def cut(self, request: CutRequest) -> None:
        """Describe the state, copy what the rule keeps, and open a reader of the parameters."""
        rule = await self._copy_rule()
        reader = await self._open_shared(request.call)
        reader.progressed_at = math.inf  # waits for the disk
        if not request.resolve((request.describe(), reader, rule)):
            reader.close()

    async def _open_shared(self, call: Call | None) -> Reader:
        reader = self.shared.open(call, self._central.version)
        if reader is None:
            self.shared.make_room()
            copy = await self._maybe_elsewhere(self._central.parameters.copy)
            reader = self.shared.add(call, copy)
        return reader

    async def initialize(self, request: InitializeRequest) -> bool:
        """Install first parameters; return whether this upload won."""
        if self._central.layout is not None:
            return False
        session = request.session
        session.check_alive()
        layout = session.join_info.layout
        self._central.bind(layout, request.parameters, request.buffers, adapter=request.adapter)
        await self._observer.bound(self._central, session)
        await self._begin_rule(layout)
        self._sessions.memory.bind(layout)
        self._staging.prepare(layout)
        self._sessions.consider_start()
        return True

    async def _begin_rule(self, layout: Layout) -> None:
        """Let the rule see the tensors. With a recipe further kernels may have to compile, which takes seconds."""
        await self._maybe_elsewhere(partial(self._recipe.begin, self._rule, layout))
        if self._recipe.recipe is not None:
            await self._elsewhere(self._rule.warm_up)

    def _open_reader(self, session: Session, snapshot: Snapshot, call: Call) -> Reader:
        handle = snapshot.published.handle if snapshot.published is not None else None
        reader = Reader(call, snapshot.version, snapshot.parameters, snapshot.buffers, self._clock, handle)
        self._belongs_to(session, reader)
        return reader

    def _belongs_to(self, session: Session, reader: Reader) -> None:
        def close(reader: Reader) -> None:
            if session.reader is reader:
                session.reader = None

        session.reader = reader
        reader.on_close.append(close)

    def _end_reader(self, session: Session) -> None:
        if session.reader is not None:
            session.reader.end(superseded_by_newer_call())

    async def _maybe_elsewhere(self, work: Callable[[], Result]) -> Result:
        if self._central.parameters.size < COPY_ELSEWHERE_ELEMENTS:
            return work()
        return await self._elsewhere(work)

    async def _elsewhere(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._kernel_thread, work)


def _missing(request: CommitRequest, buffers: Buffers, has: frozenset[int]) -> Selection | None:
    """The BUFFERs for the reply: those that the commit's worker, which has `has`, lacks; None: send all."""
    if request.payload is None or request.payload.selection is None or request.withheld:
        return None
    return Selection.of(buffers.changed_since(request.base.clock, has))
