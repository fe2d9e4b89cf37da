"""Assembles, starts, watches and stops the server's parts."""

import asyncio
import contextlib
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from gem_core import ThreadingError, UpdateRule, checked_copy, norm, wire_kernels
from gem_core.threads import configure_threads
from gem_server.durability.agreement import Agreement
from gem_server.durability.files import Files, StorageError
from gem_server.errors import Reason, RefusedError, StartupError
from gem_server.flow.applier import Applier
from gem_server.flow.commit_order import CommitOrder
from gem_server.flow.commit_service import CommitService
from gem_server.flow.initialize_service import InitializeService
from gem_server.flow.observer import NoCommitObserver
from gem_server.flow.pull_service import PullService
from gem_server.flow.request_queue import FifoQueue, RequestQueue, StrictQueue
from gem_server.flow.staging_pool import BUFFERS_FOR_THE_SLOW, Purpose, StagingPool
from gem_server.flow.turns import RankTurns
from gem_server.lifecycle import (
    DelayedCollection,
    FatalError,
    RunTimes,
    describe_waiting,
    reason_to_exit,
)
from gem_server.peer_log import PeerLog
from gem_server.persistence import Persistence
from gem_server.problem_watch import ProblemWatch, Watched
from gem_server.process_memory import anonymous_bytes, default_limit
from gem_server.ready_file import ReadyFile
from gem_server.recorder import Recorder
from gem_server.rule_choice import RuleChoice, rule_of
from gem_server.security import protection
from gem_server.security.shard_credentials import read_shard_credentials
from gem_server.service import handlers
from gem_server.service.call_context import CallContexts, ReadinessGate
from gem_server.service.commit_handler import CommitHandler
from gem_server.service.follow_client import FollowClient
from gem_server.service.follow_handler import FollowHandler
from gem_server.service.history_handler import HistoryHandler
from gem_server.service.initialize_handler import InitializeHandler
from gem_server.service.lane_port import LanePort
from gem_server.service.layouts import Layouts
from gem_server.service.listener import Listener
from gem_server.service.membership_handler import MembershipHandler, Ports
from gem_server.service.operations import Operations
from gem_server.service.pull_handler import PullHandler
from gem_server.service.run_settings import RunSettingsMessages
from gem_server.service.scrapes import Scrapes
from gem_server.service.shard_status import ShardList
from gem_server.service.shared_memory_socket import SharedMemorySocket
from gem_server.service.status import Observed, Status
from gem_server.settings import ServerSettings
from gem_server.shards.operations import Hello
from gem_server.shards.primary import PrimaryOrder, ShardLostError
from gem_server.shards.reporter import Reporter
from gem_server.shards.secondary import OutOfOrderError, SecondaryOrder
from gem_server.shards.whole import WholeStatistics
from gem_server.state.central_variable import CentralVariable
from gem_server.state.delta_bound import DeltaBound
from gem_server.state.evaluations import Evaluations
from gem_server.state.ledger import Ledger
from gem_server.state.memory import MemoryBudget
from gem_server.state.recipe import RunRecipe
from gem_server.state.run import Budget, Run, RunState
from gem_server.state.sessions import Session, Sessions
from gem_server.state.workers import Workers, WorkerState
from gem_server.telemetry.history import Interval
from gem_server.telemetry.refusals import Refusals
from gem_server.telemetry.telemetry import Telemetry
from gem_server.telemetry.time_left import TimeLeft, WorkerProgress
from gem_server.waiting_notice import PREPARING_KERNELS, WaitingNotice

if TYPE_CHECKING:
    from gem_server.web.web_server import WebServer

# Workers and ledger entries that the server remembers, as multiples of max_sessions.
REMEMBERED_FACTOR = 4
# Seconds that a drain leaves to replies that are being sent.
STOP_GRACE_SECONDS = 5.0
# Copies of theta for checkpoints: one is being written, one waits, and one is new.
LOGGED_COPIES = 3
# Seconds to write the last checkpoint.
SHARDS_STOP_SECONDS = 60.0
MAX_TICK_SECONDS = 0.5
# Seconds after which a run that waits for workers logs a warning.
ALARMING_WAIT_SECONDS = 60.0
MAX_PORT = 65535

MakeQueue: TypeAlias = Callable[[Callable[[], Sequence[Session]], Callable[[], bool]], RequestQueue]
logger = logging.getLogger(__name__)


class Server:
    """One parameter server: `start`, `wait_until_done`, `stop`, on one event loop.

    `make_queue(ring, started)` sets the order of serving (`ring()`: live sessions with budget; `started()`: whether
    training has started). `files` replaces the disk.
    """

    def __init__(
        self, settings: ServerSettings, make_queue: MakeQueue | None = None, files: Files | None = None
    ) -> None:
        self.settings = settings
        self.rule = rule_of(settings)
        self.run = _run(settings, self.rule.worker_step.local_steps)
        self.recipe = RunRecipe()
        self.choice = RuleChoice(settings, self.rule, self.run, self.recipe)
        self.shard = settings.part
        self._peer_log = PeerLog(monotonic)
        self.central = CentralVariable()
        self.workers = Workers(REMEMBERED_FACTOR * settings.limits.max_sessions)
        self.ledger = Ledger(REMEMBERED_FACTOR * settings.limits.max_sessions)
        self.memory = MemoryBudget(
            settings.memory_limit or default_limit(),
            settings.limits.staging_buffers,
            self.rule.vectors_per_worker,
            self.rule.vectors_per_run + _copies_to_store(settings, self.rule),
            BUFFERS_FOR_THE_SLOW,
        )
        self.sessions = Sessions(
            self.run,
            self.ledger,
            self.workers,
            self.memory,
            settings.limits.max_sessions,
            math.inf if self.shard.is_secondary else settings.session_timeout,
            lambda: self.central.layout,
        )
        self.primary = self._make_primary()
        forgets = bool(self.rule.vectors_per_run)
        self.secondary = (
            SecondaryOrder(monotonic, primary=settings.primary, forgets=forgets) if self.shard.is_secondary else None
        )
        self._ordering = self.primary or self.secondary or CommitOrder()
        takes_turns = settings.order == "round-robin" and not self.shard.is_secondary
        self._turns = RankTurns(self.sessions.in_turn) if takes_turns else None
        self.queue = (make_queue or self._queue_of_settings)(self.sessions.in_turn, lambda: self.run.started)
        self.staging = StagingPool(settings.limits.staging_buffers, settings.limits.waiting_room, self.queue, monotonic)
        self.bound = DeltaBound(
            settings.limits.delta_norm if self.rule.has_common_scale else 0.0, quarantines=not self.shard.is_secondary
        )
        self.evaluations = Evaluations()
        self.times = RunTimes(monotonic)
        self.telemetry = Telemetry(self.rule, monotonic, self.times.run_seconds, self._measure)
        self.persistence = Persistence(
            settings,
            files or Files(),
            central=self.central,
            rule=self.rule,
            choice=self.choice,
            recipe=self.recipe,
            run=self.run,
            workers=self.workers,
            ledger=self.ledger,
            telemetry=self.telemetry,
            agreement=self._agreement(),
            on_failure=self._on_failed_disk,
        )
        if self.primary is not None:
            self.primary.agreement.log = self.persistence.log
        if self.secondary is not None:
            self.secondary.agreement.log = self.persistence.log
        self._recorder = Recorder(settings, monotonic) if settings.record is not None else None
        self._kernel_thread = ThreadPoolExecutor(1, "gem-kernel")
        # Half of the processors; the kernels need the others.
        copies = min(self.staging.capacity, max(1, _usable_cores() // 2))
        self._copy_threads = ThreadPoolExecutor(copies, "gem-copy")
        self._time_left = TimeLeft()
        self._reporter = self._make_reporter()
        self.applier = Applier(
            central=self.central,
            rule=self.rule,
            recipe=self.recipe,
            run=self.run,
            sessions=self.sessions,
            staging=self.staging,
            queue=self.queue,
            kernel_thread=self._kernel_thread,
            clock=monotonic,
            stall_timeout=settings.limits.stall_timeout,
            telemetry=self.telemetry,
            journal=self.persistence.journal,
            observer=self._recorder or self.primary or self.secondary or NoCommitObserver(),
            peer_log=self._peer_log,
            bound=self.bound,
        )
        self.persistence.attach(self.applier)
        if self.secondary is not None:
            self.secondary.attach(
                self.applier,
                self.central,
                self.run,
                self.sessions,
                self.staging,
                self.persistence.journal,
                self.persistence.checkpointer,
            )
        if self.primary is not None:
            self.primary.attach(self.sessions)
            self.primary.on_lost = self._on_lost_shard
            self.primary.on_checkpoint_needed = self.persistence.require_checkpoint
        self.gate = ReadinessGate(self._missing_shards)
        guard = protection.protect(settings)
        self._refusals = Refusals(monotonic)
        self.problem_watch = self._make_problem_watch(guard)
        self._listener = Listener(guard, self._peer_log, self._refusals)
        self._collection = DelayedCollection()
        self._memory_socket = self._make_memory_socket()
        self._contexts = CallContexts(
            self.gate,
            self.sessions,
            monotonic,
            self._peer_log,
            self._refusals,
            self.persistence.wait_durable,
            guard.access,
        )
        self._ports = Ports()
        self._decoding_thread = ThreadPoolExecutor(1, "gem-decode")
        self._layouts = Layouts(self._decoding_thread, self.shard)
        self._commits = self._make_commit_stream()
        self._lane_port = LanePort(
            self._commits.serve_lane, self.central.incarnation, guard.certificates, self._peer_log
        )
        self._run_settings = RunSettingsMessages(settings, self.choice, self.run)
        self._status = self._make_status()
        self._history = HistoryHandler(
            self._contexts, self.telemetry, self.evaluations, lambda: self.central.incarnation
        )
        self._following: FollowClient | None = None
        self._ready_file = ReadyFile(settings.ready_file) if settings.ready_file is not None else None
        self._web: WebServer | None = None
        self._scrapes = Scrapes(monotonic)
        self._fatal = FatalError()
        self._waiting_notice = WaitingNotice()
        self._primary_ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._applying: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The gRPC port. It is 0 before `start`."""
        return self._ports.ordinary

    @property
    def ports(self) -> Ports:
        """The ports that Join tells workers."""
        return self._ports

    @property
    def lane(self) -> LanePort:
        """The lane's port, which may not be open."""
        return self._lane_port

    @property
    def status_watchers(self) -> int:
        """Number of WatchStatus calls."""
        return self._status.watchers

    @property
    def dashboard_url(self) -> str:
        """URL of the dashboard; empty if there is none."""
        return "" if self._web is None else self._web.url

    async def start(self) -> int:
        """Start serving; return the port. Raises StartupError."""
        settings = self.settings
        if self._ready_file is not None:
            self._ready_file.prepare()
        try:
            self._ports.ordinary = await self._listener.open(
                settings.bind, self._contexts.first_messages, self.service(), settings.reflection
            )
            if settings.lane_port != -1:
                self._ports.lane = self._open_lane()
            logger.info("the server is %s", PREPARING_KERNELS, extra={"event": "preparing-kernels"})
            await self._compile()
            await self.persistence.recover(await self._agree())
            if (layout := self.central.layout) is not None:
                self.memory.bind(layout)
                self._layouts.know(layout)
                self.staging.prepare(layout)
                if self.recipe.recipe is not None:
                    await self._compile()  # the kernels for its groups
            if self.run.commits_before:
                self._go_on()
            if self._recorder is not None:
                await self._recorder.start(self.choice, self.run, self.central)
            await self._open_web()
            if self._memory_socket is not None:
                self._memory_socket.open()
        except BaseException:
            if self._following is not None:
                await self._following.close()
            if self._web is not None:
                await self._web.close()
            await self._lane_port.close(None)
            await self._listener.close(None)
            await self.persistence.end_log()
            if self._recorder is not None:
                await self._recorder.abandon()
            self.persistence.release()
            raise
        self._applying = asyncio.create_task(self.applier.serve_until_closed())
        self._applying.add_done_callback(self._on_applying_done)
        self._tasks.append(asyncio.create_task(self._tick()))
        if self.secondary is None:
            self._tasks.append(asyncio.create_task(self.persistence.write_whenever_due()))
        self._listen_to_changes()
        self.gate.ready = True
        self._listener.set_health(serving=True)
        if self._ready_file is not None:
            self._ready_file.announce(settings.host, self.port, self.dashboard_url)
        if self._following is not None:
            self._tasks.append(asyncio.create_task(self._follow(self._following)))
        self._log_start()
        if self.run.state is RunState.FINISHED:
            self._go_on_finished()
        return self.port

    def _log_start(self) -> None:
        """Log where and how this server serves."""
        settings = self.settings
        if (warning := protection.warning(settings)) is not None:
            logger.warning("%s", warning)
        asked = protection.describe(settings)
        rule, level = settings.rule, settings.durability_level
        about = {"event": "serving", "host": settings.host, "port": self.port, "rule": rule, "durability": level}
        logger.info(
            "serving on %s:%d, rule %s, durability %s, %s", settings.host, self.port, rule, level, asked, extra=about
        )
        of_run = {"event": "run", "run_name": self.run.name, "run_id": self.run.identity}
        logger.info("this is %s", self.run.describe_identity(), extra=of_run)
        if settings.is_auto and self.choice.is_decided:
            logger.info("%s", self.choice.describe(), extra={"event": "rule", "rule": self.choice.rule_name})
        if self._ports.lane:
            logger.info("the lane is at port %d", self._ports.lane, extra={"event": "lane", "port": self._ports.lane})
        else:
            logger.info("no lane: workers commit over gRPC", extra={"event": "lane", "port": None})

    def _go_on_finished(self) -> None:
        """Serve a run that was finished before this process started."""
        if self.primary is not None:
            self.primary.finished(self.run.finished_because or "")
        self.times.changed(RunState.FINISHED)
        logger.warning(
            "the run in %s is finished already (%s), so workers are sent home: to train on, restart with a larger "
            "budget (--steps, --epochs, --commits), or begin a new run in another --data-dir",
            self.settings.data_dir,
            self.run.finished_because,
            extra={"event": "finished-before", "clock": self.central.clock},
        )

    async def wait_until_done(self) -> None:
        """Return when `exit_when_finished` permits. Raises the server's error."""
        while (reason := self._reason_to_exit()) is None:
            await self._fatal.wait(MAX_TICK_SECONDS)
        logger.info("the run is finished, and %s: ending", reason, extra={"event": "ending", "reason": reason})

    async def stop(self) -> None:
        """Let running calls end, write the last checkpoint, and stop. Idempotent."""
        if not self._listener.is_open:
            return
        self.gate.draining = True
        if self._ready_file is not None:
            self._ready_file.withdraw()
        self._listener.set_health(serving=False)
        refusal = RefusedError(
            Reason.DRAINING, "the server is shutting down: try again when it is back", retry_after=1.0
        )
        self.staging.refuse_waiting(refusal, tuple(Purpose))
        self.staging.end_uploads(refusal)
        if self._following is not None and not self._fatal:
            await self._wait_for_primary()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.queue.close()
        was_broken = bool(self._fatal)
        if self._applying is not None:
            await asyncio.wait([self._applying])
        if self._web is not None:
            await self._web.close()
        await self.persistence.end_log()
        unsaved = await self._end_shards()
        broken = bool(self._fatal)
        if self._recorder is not None:
            await (self._recorder.abandon() if broken else self._recorder.close(self.central))
        if self._memory_socket is not None:
            await self._memory_socket.close()
        self._collection.cancel()
        self._contexts.end_idle(refusal)
        grace = None if broken else STOP_GRACE_SECONDS
        await asyncio.gather(self._lane_port.close(grace), self._listener.close(grace))
        try:
            if not broken and self.shard.is_whole:
                await self.persistence.write_last()
        finally:
            if self._following is not None:
                await self._following.close()
            if self.secondary is not None:
                await self.secondary.close()
            self._kernel_thread.shutdown()
            self._copy_threads.shutdown()
            self._decoding_thread.shutdown()
            self.persistence.release()
        if unsaved is not None:
            raise unsaved
        if not was_broken:
            self._fatal.check()
        clock = self.central.clock
        logger.info("stopped at clock %d", clock, extra={"event": "stopped", "clock": clock})

    async def _wait_for_primary(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHARDS_STOP_SECONDS):
                await self._primary_ended.wait()

    async def _end_shards(self) -> OSError | StorageError | None:
        """As a primary, have all shards write a last checkpoint, and disconnect. Returns what prevented it."""
        if self.primary is None:
            return None
        try:
            if not self._fatal:
                async with asyncio.timeout(SHARDS_STOP_SECONDS):
                    await self.persistence.write_last()
        except TimeoutError:
            return OSError(f"not all shards wrote it within {SHARDS_STOP_SECONDS:g} s")
        except (OSError, StorageError) as error:
            return error
        except RefusedError as error:
            return OSError(str(error))
        finally:
            self.primary.close()
        return None

    def _go_on(self) -> None:
        """Continue a run that an earlier process began. `--min-workers` was fulfilled when it started."""
        self.run.go_on(in_strict_order=self._turns is not None)
        if self.run.min_workers > 1 and self.run.state is RunState.WAITING:
            effect = "the first worker that comes trains on at once"
            if self._turns is not None:
                effect = (
                    f"because of --order {self.settings.order} the run waits for {self.run.min_workers} workers again, "
                    f"for {self.sessions.timeout:g} s at most (--session-timeout)"
                )
            logger.info(
                "the run had begun, and --min-workers holds for the first start: %s", effect, extra={"event": "goes-on"}
            )

    def _queue_of_settings(self, _: object, started: Callable[[], bool]) -> RequestQueue:
        if self._turns is None:
            return FifoQueue(started)
        return StrictQueue(self._turns, started)

    def _open_lane(self) -> int:
        settings, port = self.settings, self._ports.ordinary + 1
        if settings.lane_port is not None or settings.bind.endswith(":0") or port > MAX_PORT:
            return self._lane_port.open(settings.host, settings.lane_port or 0)
        try:
            return self._lane_port.open(settings.host, port, only_if_free=True)
        except StartupError:
            free = self._lane_port.open(settings.host, 0)
            logger.warning("port %d is taken, so the lane is at %d: choose one with --lane-port", port, free)
            return free

    async def _open_web(self) -> None:
        if self.settings.dashboard:
            from gem_server.web.listener import open_web  # imports aiohttp

            has_factors = self.rule.has_factors
            self._web = await open_web(
                self.settings, self._status, self._history, self._scrapes, has_factors=has_factors
            )

    async def _compile(self) -> None:
        """Load the kernels, on the thread that launches them."""

        def compile_kernels() -> None:
            configure_threads(self.settings.limits.threads)
            self.rule.warm_up()
            wire_kernels.warm_up()
            norm.warm_up()
            if self._memory_socket is not None:
                checked_copy.warm_up()

        try:
            await asyncio.get_running_loop().run_in_executor(self._kernel_thread, compile_kernels)
        except ThreadingError as error:
            raise StartupError(str(error)) from error

    def _make_primary(self) -> PrimaryOrder | None:
        if self.shard.is_whole or self.shard.is_secondary:
            return None
        statistics = WholeStatistics(self.shard.count, self.workers, lambda: self.central.layout)
        return PrimaryOrder(self.shard, statistics, self._peer_log)

    def _make_reporter(self) -> Reporter | None:
        if self.secondary is None:
            return None
        return Reporter(self.secondary, self.central, self.workers, self.telemetry)

    def _make_memory_socket(self) -> SharedMemorySocket | None:
        path = self.settings.shared_memory_socket
        if path is None:
            return None
        return SharedMemorySocket(
            path.absolute(),
            self.sessions,
            self.gate,
            monotonic,
            self._collection.schedule,
            self.shard,
            self._peer_log,
        )

    def _make_status(self) -> Status:
        observed = Observed(
            self.central,
            self.run,
            self.sessions,
            self.staging,
            self.queue,
            self.evaluations,
            self.telemetry,
            self.persistence.checkpointer,
            self.settings.durability_level,
            self._run_settings,
            self.times.run_seconds,
            self.times.uptime,
            ShardList(
                self.shard,
                self.primary,
                self.central,
                self._ports,
                self.settings.shard_address,
                self.settings.primary,
            ),
            self.primary.statistics.figures if self.primary is not None else lambda seen: seen.figures,
            self.primary.statistics.totals if self.primary is not None else lambda totals: totals,
            lambda: self.times.finished_since,
            lambda: self._time_left.seconds,
            self.problem_watch.problems,
        )
        return Status(self._contexts, observed, monotonic)

    def _make_problem_watch(self, guard: protection.Protection) -> ProblemWatch:
        watched = Watched(
            is_secondary=self.shard.is_secondary,
            data_dir=self.settings.data_dir,
            checkpoint_interval=self.settings.checkpoint_interval,
            central=self.central,
            run=self.run,
            sessions=self.sessions,
            checkpointer=self.persistence.checkpointer,
            log=self.persistence.log,
            guard=guard,
            refusals=self._refusals,
            first_batches=self.telemetry.first_batches,
            run_seconds=self.times.run_seconds,
        )
        return ProblemWatch(watched, monotonic)

    def _make_commit_stream(self) -> CommitHandler:
        commit_service = CommitService(
            central=self.central,
            run=self.run,
            sessions=self.sessions,
            staging=self.staging,
            applier=self.applier,
            draining=lambda: self.gate.draining,
            copy_threads=self._copy_threads,
            journal=self.persistence.journal,
            ordering=self._ordering,
            recipe=self.recipe,
            rule=self.rule,
            measures_norms=self.bound.is_on,
        )
        return CommitHandler(self._contexts, commit_service, self.staging, self.settings.limits.chunk_bytes)

    def service(self) -> tuple[handlers.Service, ...]:
        """Return handlers of all calls."""
        contexts, persistence, chunk_bytes = self._contexts, self.persistence, self.settings.limits.chunk_bytes
        initialize_service = InitializeService(
            central=self.central,
            sessions=self.sessions,
            staging=self.staging,
            applier=self.applier,
            stored=persistence.first_is_written,
            ordering=self._ordering,
        )
        pull_service = PullService(
            central=self.central,
            sessions=self.sessions,
            applier=self.applier,
            journal=persistence.journal,
            stored=persistence.first_is_written,
            ordering=self._ordering,
            shard=self.shard,
        )
        return handlers.handlers(
            contexts.first_messages,
            MembershipHandler(
                contexts,
                self.sessions,
                self.run,
                self.central,
                self.choice,
                self._run_settings,
                chunk_bytes,
                str(self._memory_socket.path) if self._memory_socket is not None else "",
                self._ports,
                monotonic,
                self._layouts,
                self.shard,
                self._ordering,
                self._other_shards,
                self.telemetry.first_batches,
            ),
            InitializeHandler(contexts, initialize_service, self.central),
            PullHandler(contexts, pull_service, self.central, self.run, chunk_bytes, self._other_shards),
            self._commits,
            self._status,
            self._history,
            Operations(
                contexts,
                self.run,
                self.sessions,
                self.central,
                self.evaluations,
                persistence.checkpointer.write if persistence.checkpointer is not None else None,
                self.times.run_seconds,
                self.shard,
                monotonic,
            ),
            FollowHandler(contexts, self.primary, _shared_settings(self.rule, self.settings)),
        )

    def _other_shards(self) -> list[str]:
        return self.primary.addresses if self.primary is not None else []

    def _missing_shards(self) -> list[int]:
        return self.primary.missing if self.primary is not None else []

    def _agreement(self) -> Agreement:
        ordering = self.primary or self.secondary
        return ordering.agreement if ordering is not None else Agreement()

    async def _agree(self) -> int | None:
        """Agree with the other shards on the clock to recover at. None if this is the only server."""
        if self.shard.is_whole:
            return None
        clocks, run = await self.persistence.clocks()
        if self.primary is not None:
            return await self.primary.begin_at(clocks, run or self.run.identity, self.run.name)
        settings = self.settings
        address = settings.shard_address or f":{self.port}"
        hello = Hello(self.shard, address, _shared_settings(self.rule, self.settings), tuple(clocks), run)
        credentials = read_shard_credentials(settings.primary_credentials)
        if self.secondary is None:
            raise AssertionError("neither primary nor secondary")
        self._following = FollowClient(settings.primary, hello, self.secondary, self._layouts, credentials)
        begin = await self._following.wait_begin()
        self.run.identity, self.run.name = begin.run, begin.run_name
        return begin.clock

    async def _follow(self, client: FollowClient) -> None:
        """Apply the primary's operations until it ends, which is fatal before the run's end."""
        try:
            await client.follow()
        except ShardLostError as error:
            self._primary_ended.set()
            self._on_lost_shard(error)
        except OutOfOrderError as error:
            self._on_lost_shard(error)

    def _on_lost_shard(self, error: Exception) -> None:
        if not (self._fatal or self.gate.draining or self.run.state is RunState.FINISHED):
            logger.critical("%s: this shard stops; start all shards again", error, extra={"event": "shard-lost"})
            self._fatal.set(error)

    def _listen_to_changes(self) -> None:

        def wake_waiters(_: object = None) -> None:
            self.queue.sessions_changed()
            self.staging.dispatch()

        def session_joined(session: Session) -> None:
            self.times.last_join = session.joined_at
            wake_waiters()

        def session_ended(session: Session) -> None:
            if session.worker.state is not WorkerState.SUPERSEDED:  # else the worker has another session in a moment
                self.sessions.consider_finish()
            wake_waiters()
            self._collection.schedule()

        def run_changed() -> None:
            self.times.changed(self.run.state)
            if self.run.state is RunState.TRAINING:
                count = len(self.sessions)
                logger.info("training starts, workers joined: %d", count, extra={"event": "training", "workers": count})
                if self._turns is not None and (missing := self.run.min_workers - self.sessions.count_present()) > 0:
                    logger.warning(
                        "%d workers have not come back within %g s (--session-timeout), and training goes on without "
                        "them: commits will come in another order than in a run without a restart",
                        missing,
                        self.sessions.timeout,
                    )
            elif self.run.state is RunState.FINISHED:
                if self.primary is not None:
                    self.primary.finished(self.run.finished_because or "")
                self._run_finished()
            wake_waiters()

        def session_displaced(session: Session) -> None:
            name, limit = session.worker.name, self.sessions.max_sessions
            line = f"worker {name} gave its place to another, because all {limit} sessions are taken: raise "
            line += "limits.max_sessions, or see in gemps status whose they are"
            self._peer_log.log("displaced", name, line, level=logging.WARNING, worker=name)

        self.sessions.on_displaced.append(session_displaced)
        self.sessions.on_join.append(session_joined)
        self.sessions.on_end.append(session_ended)
        self.sessions.on_end.append(lambda session: self.bound.forget(session.worker.name))
        self.choice.on_change.append(self._rule_decided)
        if self.secondary is not None:
            self.secondary.on_rule_decided = self.choice.follow
        if self._recorder is not None:
            self.sessions.on_join.append(self._recorder.joined)
            self.sessions.on_end.append(self._recorder.left)
            self.sessions.on_wire_types.append(self._recorder.wire_types_changed)
        if self.secondary is None:
            self.sessions.on_end.append(self.applier.session_ended)
        self.run.on_change.append(run_changed)

    def _rule_decided(self) -> None:
        if self.primary is not None:
            self.primary.rule_decided(self.choice.recipe, self.choice.direction)
        self._peer_log.log("rule", "first worker", self.choice.describe(), rule=self.choice.rule_name)

    def _measure(self, interval: Interval) -> None:
        interval.clock = self.central.clock
        interval.jain_index = self.sessions.fairness.index(self.sessions.live_workers())
        interval.workers = len(self.sessions)
        interval.queued = len(self.queue)
        interval.memory = anonymous_bytes()
        live = {session.worker.name for session in self.sessions.live()}
        interval.set_typical_loss(
            worker.telemetry for worker in self.workers.by_rank() if worker.name in live or worker.telemetry.losses
        )
        if self.primary is not None:
            self.primary.statistics.complete(interval)

    def _run_finished(self) -> None:
        self.telemetry.run_finished()
        if self._reporter is not None:
            self._reporter.report_now(monotonic())
        self.persistence.require_checkpoint()
        stays = "; serving pulls until it is stopped"
        if self.settings.exit_when_finished:
            linger = self.settings.limits.exit_linger
            stays = f"; ending when no worker has come for {linger:g} s and all have left" if linger else ""
        because = self.run.finished_because
        about = {"event": "finished", "reason": because, "clock": self.central.clock}
        logger.info("finished: %s%s", because, stays, extra=about)
        self.staging.refuse_waiting(
            RefusedError(Reason.RUN_FINISHED, f"the run is finished ({self.run.finished_because}): leave, and exit 0"),
            (Purpose.COMMIT,),
        )

    async def _tick(self) -> None:
        tick = min(MAX_TICK_SECONDS, self.settings.limits.stall_timeout / 4, self.settings.session_timeout / 4)
        while True:
            await asyncio.sleep(tick)
            self.telemetry.tick()
            self._estimate_time_left()
            self._peer_log.tick()
            if self._reporter is not None and not self._primary_ended.is_set():
                self._reporter.report_if_due(monotonic())
            for session in self.sessions.expire(monotonic()):
                name, seconds = session.worker.name, self.sessions.timeout
                line = f"worker {name} expired: not heard of for {seconds:g} s"
                self._peer_log.log("expired", name, line, level=logging.WARNING, worker=name, seconds=seconds)
            others_wait = self.queue.blocked() or self._ordering.is_initialize_awaited
            for hold in self.staging.evict_stalled(self.settings.limits.stall_timeout, others_wait):
                name = hold.session.worker.name
                line = f"the upload of worker {name} stalled: another worker gets its buffer"
                self._peer_log.log("upload-stalled", name, line, level=logging.WARNING, worker=name)
                if self.secondary is not None and hold.purpose is Purpose.INITIALIZE:
                    self.secondary.first_upload_stalled(hold.session)
            for hold in self.staging.evict_slow():
                name = hold.session.worker.name
                line = f"the upload of worker {name} is slow: another worker gets its buffer"
                self._peer_log.log("upload-slow", name, line, level=logging.WARNING, worker=name)
            self._say_if_waiting()
            self.problem_watch.look_if_due()

    def _say_if_waiting(self) -> None:
        state, present, wanted = self.run.state, self.sessions.count_present(), self.run.wanted_workers
        waits = state is RunState.WAITING or (state is RunState.TRAINING and not len(self.sessions))
        seconds = self._waiting_notice.check(monotonic(), waits=waits and self.secondary is None)
        if seconds is None:
            return
        absent = [worker.name for worker in self.sessions.absent()]
        text = describe_waiting(started=self.run.started, present=present, wanted=wanted, absent=absent)
        missing = 1 if self.run.started else max(0, wanted - present)
        about = {"event": "waiting-for-workers", "workers": present, "missing": missing, "seconds": round(seconds)}
        level = logging.WARNING if seconds >= ALARMING_WAIT_SECONDS else logging.INFO
        logger.log(level, "%s, for %.0f s now", text, seconds, extra=about)

    def _estimate_time_left(self) -> None:
        run = self.run
        if run.state is not RunState.TRAINING:
            self._time_left.seconds = None
            return
        left = max(0, run.budget.commits - run.commits) if run.budget.commits else None
        live = self.sessions.live_workers()
        workers = [WorkerProgress(one.name, one.commits, one.left) for one in live if one.left]
        self._time_left.update(self.times.run_seconds(), run.commits, left, workers)

    def _reason_to_exit(self) -> str | None:
        if self.secondary is not None:
            return "the primary has ended" if self._primary_ended.is_set() and self.run.finished_because else None
        if not self.settings.exit_when_finished or self.times.finished_since is None:
            return None
        return reason_to_exit(
            monotonic(),
            finished_at=self.times.finished_since,
            last_join=self.times.last_join,
            sessions=len(self.sessions),
            watchers=self._status.watchers,
            is_scrape_due=self._scrapes.is_due(self.times.finished_since),
            linger=self.settings.limits.exit_linger,
            grace=self.settings.limits.exit_grace,
        )

    def _on_failed_disk(self, failure: StorageError) -> None:
        if not self._fatal:
            logger.critical("%s: the server stops, because it could not keep what it promises; check the disk", failure)
            self._fatal.set(failure)

    def _on_applying_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("the applying task failed; the server stops", exc_info=error)
            self._fatal.set(error)


def _run(settings: ServerSettings, local_steps: int) -> Run:
    """Create the run. On a secondary it has no limits and no name, because the primary's apply."""
    if settings.part.is_secondary:
        return Run(Budget(), settings.schedule, 1)
    budget = Budget(settings.steps, settings.epochs, settings.commits, local_steps)
    return Run(budget, settings.schedule, settings.min_workers, settings.run)


def _shared_settings(rule: UpdateRule, settings: ServerSettings) -> str:
    """Return as JSON the settings that must be equal on all shards before the first worker."""
    about = {
        "rule": settings.rule,
        "durability": settings.durability_level,
        "staging_buffers": settings.limits.staging_buffers,
        "data_dir": settings.data_dir is not None,
        "settings": dict(sorted(rule.settings.items())),
    }
    return json.dumps(about)


def _copies_to_store(settings: ServerSettings, rule: UpdateRule) -> int:
    """Return the number of further vectors to store if the rule's snapshots are not copies of theta."""
    logged = LOGGED_COPIES * (rule.kept_vectors + (not rule.sends_parameters))
    cut = rule.kept_vectors if settings.data_dir is not None else 0
    return cut + (logged if settings.durability_level == "commit" else 0)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS, Windows
