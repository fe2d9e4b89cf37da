"""The server: its parts put together, started, watched and stopped. `process.py` runs it as a process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from gem_core import RuleError, ThreadingError, create_rule
from gem_core.threads import configure_threads
from gem_server.durability import checkpoint, recovery, run_record
from gem_server.durability.checkpointer import Checkpointer
from gem_server.durability.files import Files, StorageFailure
from gem_server.durability.lock import DirectoryLock
from gem_server.durability.log import Log
from gem_server.durability.log_format import NO_LOG
from gem_server.ending import reason_to_exit
from gem_server.errors import Reason, Refusal, StartupError
from gem_server.flow.applying import Applier
from gem_server.flow.committing import Committing
from gem_server.flow.initializing import Initializing
from gem_server.flow.pulling import Pulling
from gem_server.flow.request_queue import FifoQueue, RequestQueue, RoundRobinQueue
from gem_server.flow.staging import Purpose, StagingPool
from gem_server.process_memory import default_limit
from gem_server.ready_file import ReadyFile
from gem_server.recorder import Recorder
from gem_server.security.access import Access
from gem_server.security.certificates import Certificates, read_certificates
from gem_server.security.reloading import Reloading, UnusableFileError
from gem_server.security.tokens import Tokens, read_tokens
from gem_server.service import handlers, messages
from gem_server.service.answering import Answering, Gate
from gem_server.service.commit_stream import CommitStream
from gem_server.service.door import TokenInterceptor, server_credentials
from gem_server.service.initialize_stream import InitializeStream
from gem_server.service.membership import Membership
from gem_server.service.operations import Operations
from gem_server.service.pull_stream import PullStream
from gem_server.service.refused_callers import RefusedCallers
from gem_server.service.status import Observed, Status
from gem_server.settings import ServerSettings, is_loopback
from gem_server.state.central_variable import CentralVariable
from gem_server.state.evaluations import Evaluations
from gem_server.state.ledger import Ledger
from gem_server.state.memory import MemoryBudget
from gem_server.state.run import Budget, Run, RunState
from gem_server.state.schedule import EtaSchedule
from gem_server.state.sessions import Session, Sessions
from gem_server.state.workers import Workers

MIB = 1024 * 1024
# DESIGN.md section 3. The receive limit leaves room for a 2 MiB chunk and its header.
MAX_RECEIVE_BYTES = 2 * MIB + 64 * 1024
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", 4 * MIB),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.max_frame_size", 16 * MIB - 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * MIB),
    ("grpc.max_concurrent_streams", 4096),
)
# Entries and names that outlive their sessions: a few generations of the largest run.
REMEMBERED_FACTOR = 4
# What a trace says of the run beside its rule: all that decides about order, eta and end.
RECORDED_SETTINGS = (
    *("eta", "eta_schedule", "eta_warmup", "eta_step_every", "eta_step_factor", "eta_decay_commits", "eta_min"),
    *("steps", "epochs", "commits", "order", "min_workers", "seed", "staging_buffers"),
)
# How long replies that are on their way may go on after the queue was finished.
STOP_GRACE_SECONDS = 5.0
MAX_TICK_SECONDS = 0.5
# After how long without a worker an unfinished run says so: people look at the log long before.
DESERTED_SECONDS = 60.0

MakeQueue: TypeAlias = Callable[[Callable[[], Sequence[Session]], Callable[[], bool]], RequestQueue]
logger = logging.getLogger(__name__)


class Server:
    """One parameter server. `start`, then `wait_until_done` or whatever else, then `stop`; all on one event loop.

    `make_queue(ring, started)` puts another order of serving in (`ring()`: live sessions that have budget left;
    `started()`: whether training has started); by default it is the one of `settings.order`. `files` puts another disk
    under the data directory.
    """

    def __init__(
        self, settings: ServerSettings, make_queue: MakeQueue | None = None, files: Files | None = None
    ) -> None:
        self.settings = settings
        self._files = files or Files()
        try:
            self.rule = create_rule(settings.rule, **settings.rule_settings())
        except RuleError as error:
            raise StartupError(str(error)) from error
        self.central = CentralVariable()
        self.run = Run(
            Budget(settings.steps, settings.epochs, settings.commits), _schedule(settings), settings.min_workers
        )
        self.workers = Workers(REMEMBERED_FACTOR * settings.max_sessions)
        self.ledger = Ledger(REMEMBERED_FACTOR * settings.max_sessions)
        self.memory = MemoryBudget(
            settings.memory_limit or default_limit(), settings.staging_buffers, self.rule.vectors_per_worker
        )
        self.sessions = Sessions(
            self.run,
            self.ledger,
            self.workers,
            self.memory,
            settings.max_sessions,
            settings.session_timeout,
            lambda: self.central.layout,
        )
        self.queue = (make_queue or _queue_of(settings))(self._ring, lambda: self.run.started)
        self.staging = StagingPool(settings.staging_buffers, settings.waiting_room, self.queue.pick, monotonic)
        self.evaluations = Evaluations()
        self.gate = Gate()
        try:
            self._certificates, tokens = _certificates(settings), _tokens(settings)
        except UnusableFileError as error:
            raise StartupError(str(error)) from error
        self._access = Access(tokens.current) if tokens is not None else None
        self._log = self._make_log()
        shown = self._all_is_synced if self._log is not None else None
        self._answering = Answering(self.gate, self.sessions, monotonic, shown, self._access)
        self._recorder = Recorder(settings.record, monotonic) if settings.record is not None else None
        self.applier = Applier(
            central=self.central,
            rule=self.rule,
            run=self.run,
            sessions=self.sessions,
            staging=self.staging,
            queue=self.queue,
            kernel_thread=(kernel_thread := ThreadPoolExecutor(1, "gem-kernel")),
            clock=monotonic,
            log=self._log,
            recorder=self._recorder,
        )
        self._kernel_thread = kernel_thread
        self.checkpointer = self._make_checkpointer()
        self._lock = DirectoryLock(settings.data_dir) if settings.data_dir is not None else None
        self._ready_file = ReadyFile(settings.ready_file) if settings.ready_file is not None else None
        self._grpc: grpc.aio.Server | None = None
        self._health = health_aio.HealthServicer()
        self._tasks: list[asyncio.Task[None]] = []
        self._applying: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] | None = None
        self._started_at = 0.0
        self._training_since: float | None = None
        self._finished_since: float | None = None
        self._last_join: float | None = None
        self._deserted_since: float | None = None
        self._told_deserted = False
        self._status: Status | None = None
        self.port = 0

    async def start(self) -> int:
        """Bind, compile, recover, serve; returns the port. Raises StartupError with the fix in its message."""
        self._started_at = monotonic()
        self._failed = asyncio.get_running_loop().create_future()
        if self._ready_file is not None:
            self._ready_file.prepare()
        await self._bind()
        try:
            await self._prepare()
        except BaseException:
            await self._close_grpc(None)
            if self._log is not None:
                await self._log.close()
            if self._recorder is not None:
                await self._recorder.abandon()
            self._unlock()
            raise
        self._applying = asyncio.create_task(self.applier.serve_until_closed())
        self._applying.add_done_callback(self._on_applying_done)
        self._tasks.append(asyncio.create_task(self._tick()))
        if self.checkpointer is not None:
            level = self.settings.durability_level
            seconds = 0.0 if level == "none" else self.settings.checkpoint_interval
            writing = self.checkpointer.write_whenever_due(seconds)
            self._tasks.append(asyncio.create_task(writing))
        self._listen_to_changes()
        self.gate.ready = True
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        if self._ready_file is not None:
            self._ready_file.announce(self.settings.host, self.port)
        where, rule = self.settings.host, self.settings.rule
        logger.info("serving on %s:%d, rule %s, %s", where, self.port, rule, self._security())
        if self.run.state is RunState.FINISHED:
            self._finished_since = monotonic()
            logger.warning(
                "the run in %s is finished already (%s), so workers are sent home: to train on, restart with a larger "
                "budget (--steps, --epochs, --commits), or begin a new run in another --data-dir",
                self.settings.data_dir,
                self.run.finished_because,
            )
        return self.port

    async def wait_until_done(self) -> None:
        """Return when the run is finished and `exit_when_finished` says so. Raises what broke the server."""
        if self._failed is None:
            raise RuntimeError("the server was not started")
        while (reason := self._reason_to_exit()) is None:
            done, _ = await asyncio.wait([self._failed], timeout=MAX_TICK_SECONDS)
            if done:
                await self._failed
        logger.info("the run is finished, and %s: ending", reason)

    async def stop(self) -> None:
        """Drain: not serving, no new work, finish the queue, checkpoint, stop. Harmless a second time."""
        if self._grpc is None:
            return
        self.gate.draining = True
        if self._ready_file is not None:
            self._ready_file.withdraw()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        refusal = Refusal(Reason.DRAINING, "the server is shutting down: try again when it is back", retry_after=1.0)
        self.staging.refuse_waiting(refusal, tuple(Purpose))
        self.staging.end_uploads(refusal)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.queue.close()
        was_broken = self._is_broken()
        if self._applying is not None:
            await asyncio.wait([self._applying])
        if self._log is not None:
            await self._log.close()
        broken = self._is_broken()
        if self._recorder is not None:
            await (self._recorder.abandon() if broken else self._recorder.close(self.central))
        self._answering.end_idle(refusal)
        await self._close_grpc(None if broken else STOP_GRACE_SECONDS)
        try:
            if self.checkpointer is not None and self.central.layout is not None and not broken:
                await self.checkpointer.write_last()
        finally:
            self._kernel_thread.shutdown()
            self._unlock()
        if broken and not was_broken and self._failed is not None:
            await self._failed
        logger.info("stopped at clock %d", self.central.clock)

    # --- starting

    async def _bind(self) -> None:
        door = () if self._access is None else (TokenInterceptor(self._access, RefusedCallers()),)
        self._grpc = grpc.aio.server(options=CHANNEL_OPTIONS, interceptors=door)
        self._grpc.add_generic_rpc_handlers((self._service(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        if self.settings.reflection:
            names = (handlers.SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._grpc)
        try:
            if self._certificates is None:
                self.port = self._grpc.add_insecure_port(self.settings.bind)
            else:
                self.port = self._grpc.add_secure_port(self.settings.bind, server_credentials(self._certificates))
        except RuntimeError as error:
            raise StartupError(
                f"cannot listen on {self.settings.bind}: another process has that port, or the address is not this "
                "machine's; stop that process, or choose another --bind (port 0 takes a free one)"
            ) from error
        await self._grpc.start()

    def _security(self) -> str:
        """What the log says about who may come in."""
        settings = self.settings
        encrypted = settings.tls_cert is not None
        asked = [settings.tls_client_ca is not None and "client certificates", settings.tokens is not None and "tokens"]
        wanted = " and ".join(one for one in asked if one)
        if not wanted and not is_loopback(settings.host):
            logger.warning(
                "whoever reaches %s can train, read the parameters and end the run: give --tokens FILE or "
                "--tls-client-ca FILE, unless all in this network may",
                settings.bind,
            )
        return f"{'with' if encrypted else 'without'} TLS, {wanted or 'no credentials'} asked for"

    async def _prepare(self) -> None:
        """Compile the kernels on the thread that will launch them, and read the checkpoint."""
        loop = asyncio.get_running_loop()

        def compile_kernels() -> None:
            configure_threads(self.settings.threads)
            self.rule.warm_up()

        try:
            await loop.run_in_executor(self._kernel_thread, compile_kernels)
        except ThreadingError as error:
            raise StartupError(str(error)) from error
        if self.settings.data_dir is not None:
            await self._recover(self.settings.data_dir)
        if self._recorder is not None:
            run = {"rule": self.rule.name, "rule_settings": dict(self.rule.settings)}
            settings = self.settings.model_dump(mode="json", include=set(RECORDED_SETTINGS))
            await self._recorder.start(run | {"settings": settings}, self.central, resume=self.settings.resume)

    async def _recover(self, data_dir: Path) -> None:
        try:
            missing = [path for path in (data_dir, *data_dir.parents) if not path.exists()]
            data_dir.mkdir(parents=True, exist_ok=True)
            for path in missing:
                self._files.sync(path.parent)
            if self._lock is not None:
                self._lock.acquire()
        except OSError as error:
            raise StartupError(f"--data-dir {data_dir} cannot be made or written: {error.strerror}") from error
        if not self.settings.resume:
            if (data_dir / checkpoint.LATEST).exists():
                raise StartupError(
                    f"{data_dir} holds a checkpoint of an earlier run: add --resume to go on with it, or choose "
                    "another --data-dir"
                )
            if self._log is not None:
                self._log.start(0, NO_LOG)
            return
        recovered = await asyncio.to_thread(recovery.recover, data_dir)
        if self._log is not None:
            self._log.start(*((recovered.last_number, recovered.last_id) if recovered else (0, NO_LOG)))
        if recovered is None:
            logger.info("nothing to resume in %s: starting anew", data_dir)
            return
        saved = recovered.whole
        if saved.state.get("seed") != self.settings.seed:
            logger.warning("the checkpoint was made with --seed %s", saved.state.get("seed"))
        logger.info("resuming at clock %d, commits from the log: %d", saved.clock, recovered.replayed)
        self.central.bind(saved.layout, saved.parameters, saved.buffers, saved.constants, saved.clock)
        self.memory.bind(saved.layout)
        self.staging.prepare(saved.layout)
        try:
            run_record.restore(saved.state, self.run, self.workers, self.ledger)
        except (KeyError, TypeError, ValueError) as error:
            raise StartupError(f"the checkpoint in {data_dir} lacks what this version needs: {error!r}") from error
        if self.checkpointer is not None and (self._log is not None or recovered.replayed):
            try:
                await self.checkpointer.write_recovered()
            except OSError as error:
                raise StartupError(
                    f"there is no room in {data_dir} to begin with ({error.strerror}): free some; nothing is lost"
                ) from error
            except StorageFailure as error:
                raise StartupError(f"{error}: check the disk") from error

    def _service(self) -> grpc.GenericRpcHandler:
        answering = self._answering
        chunk_bytes = self.settings.chunk_bytes
        run_settings = messages.run_settings_to(self.settings, dict(self.rule.settings))
        initializing = Initializing(
            central=self.central,
            sessions=self.sessions,
            staging=self.staging,
            applier=self.applier,
            stored=self._promises_first(),
        )
        pulling = Pulling(central=self.central, sessions=self.sessions, applier=self.applier, log=self._log)
        committing = Committing(
            central=self.central,
            run=self.run,
            sessions=self.sessions,
            staging=self.staging,
            applier=self.applier,
            draining=lambda: self.gate.draining,
            log=self._log,
        )
        observed = Observed(
            self.central,
            self.run,
            self.sessions,
            self.staging,
            self.queue,
            self.evaluations,
            self.applier.rate,
            self.checkpointer,
            self.settings.durability_level,
            run_settings,
            self._run_seconds,
            lambda: monotonic() - self._started_at,
        )
        self._status = Status(answering, observed, monotonic)
        return handlers.handlers(
            Membership(answering, self.sessions, self.run, self.central, run_settings, chunk_bytes, monotonic),
            InitializeStream(answering, initializing, self.central),
            PullStream(answering, pulling, self.central, self.run, chunk_bytes),
            CommitStream(answering, committing, chunk_bytes),
            self._status,
            Operations(
                answering,
                self.run,
                self.central,
                self.evaluations,
                self.checkpointer.write if self.checkpointer is not None else None,
                self._run_seconds,
            ),
        )

    def _make_checkpointer(self) -> Checkpointer | None:
        settings = self.settings
        if settings.data_dir is None:
            return None
        writer = Checkpointer(
            data_dir=settings.data_dir,
            files=self._files,
            central=self.central,
            applier=self.applier,
            describe=lambda: run_record.describe(self.run, self.workers, self.ledger, settings.seed),
            clock=monotonic,
            log=self._log,
            on_failure=self._break,
        )
        if settings.checkpoint_commits and settings.durability_level != "none":
            self.applier.on_commit.append(lambda: writer.count_commit(settings.checkpoint_commits))
        return writer

    def _make_log(self) -> Log | None:
        if self.settings.data_dir is None or self.settings.durability_level != "commit":
            return None
        return Log(
            directory=self.settings.data_dir / recovery.LOG,
            files=self._files,
            staging_buffers=self.settings.staging_buffers,
            on_large=lambda: self.checkpointer.soon() if self.checkpointer is not None else None,
            on_failure=self._break,
        )

    async def _all_is_synced(self) -> None:
        if self._log is not None:
            await self._log.until(self.central.clock)

    def _promises_first(self) -> Callable[[], Awaitable[None]] | None:
        """What an Initialize waits for before it is acknowledged."""
        if self.checkpointer is None or self.settings.durability_level == "none":
            return None
        return self.checkpointer.first_is_written

    # --- while it runs

    def _listen_to_changes(self) -> None:
        """What waits for the run or for sessions looks again when they change."""

        def look_again(_: object = None) -> None:
            self.queue.sessions_changed()
            self.staging.dispatch()

        def session_joined(session: Session) -> None:
            self._last_join = session.joined_at
            look_again()

        def session_ended(session: Session) -> None:
            self.sessions.consider_finish()
            look_again()

        def run_changed() -> None:
            if self.run.state is RunState.TRAINING:
                self._training_since = monotonic()
                logger.info("training starts, workers joined: %d", len(self.sessions))
            elif self.run.state is RunState.FINISHED:
                self._finished_since = monotonic()
                if self.checkpointer is not None:
                    self.checkpointer.soon()
                stays = "; serving pulls until it is stopped"
                if self.settings.exit_when_finished:
                    linger = self.settings.exit_linger
                    stays = f"; ending when no worker has come for {linger:g} s and all have left" if linger else ""
                logger.info("finished: %s%s", self.run.finished_because, stays)
                self.staging.refuse_waiting(
                    Refusal(
                        Reason.RUN_FINISHED, f"the run is finished ({self.run.finished_because}): leave, and exit 0"
                    ),
                    (Purpose.COMMIT,),
                )
            look_again()

        self.sessions.on_join.append(session_joined)
        self.sessions.on_end.append(session_ended)
        if self._recorder is not None:
            self.sessions.on_join.append(self._recorder.joined)
            self.sessions.on_end.append(self._recorder.left)
        self.run.on_change.append(run_changed)

    async def _tick(self) -> None:
        """What depends on time passing: sessions that expire, uploads that stall."""
        tick = min(MAX_TICK_SECONDS, self.settings.stall_timeout / 4, self.settings.session_timeout / 4)
        while True:
            await asyncio.sleep(tick)
            for session in self.sessions.expire(monotonic()):
                logger.warning("worker %s expired: not heard of for %g s", session.worker.name, self.sessions.timeout)
            for hold in self.staging.evict_stalled(self.settings.stall_timeout, self.queue.blocked()):
                logger.warning("the upload of worker %s stalled: its buffer goes on", hold.session.worker.name)
            self._tell_when_deserted(monotonic())

    def _tell_when_deserted(self, now: float) -> None:
        if len(self.sessions) or self.run.state is RunState.FINISHED:
            self._deserted_since, self._told_deserted = None, False
        elif self._deserted_since is None:
            self._deserted_since = now
        elif not self._told_deserted and now - self._deserted_since >= DESERTED_SECONDS:
            self._told_deserted = True
            logger.warning("no worker has been joined for %g s: the run waits for workers", DESERTED_SECONDS)

    def _reason_to_exit(self) -> str | None:
        if not self.settings.exit_when_finished or self._finished_since is None:
            return None
        return reason_to_exit(
            monotonic(),
            finished_at=self._finished_since,
            last_join=self._last_join,
            sessions=len(self.sessions),
            watchers=self._status.watchers if self._status is not None else 0,
            linger=self.settings.exit_linger,
            grace=self.settings.exit_grace,
        )

    def _is_broken(self) -> bool:
        return self._failed is not None and self._failed.done()

    def _break(self, failure: StorageFailure) -> None:
        """The disk fails: end the process, and acknowledge nothing any more."""
        if self._failed is not None and not self._failed.done():
            logger.critical("%s: the server stops, because it could not keep what it promises; check the disk", failure)
            self._failed.set_exception(failure)

    def _on_applying_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self._failed is not None:
            logger.critical("the applying task failed; the server stops", exc_info=error)
            if not self._failed.done():
                self._failed.set_exception(error)

    def _ring(self) -> Sequence[Session]:
        if self.run.state is RunState.FINISHED:
            return ()  # nobody's turn will come any more: what is complete is served as it is
        all_reserved = self.run.all_reserved
        return [
            session
            for session in self.sessions.live()
            if not session.worker.done and (session.worker.reserved or not all_reserved)
        ]

    def _run_seconds(self) -> float:
        """Seconds of training in this process: they stand still when the run is finished."""
        if self._training_since is None:
            return 0.0
        return (monotonic() if self._finished_since is None else self._finished_since) - self._training_since

    async def _set_health(self, status: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        for name in ("", handlers.SERVICE):
            await self._health.set(name, status)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    async def _close_grpc(self, grace: float | None) -> None:
        if self._grpc is not None:
            await self._grpc.stop(grace)
            self._grpc = None


def _schedule(settings: ServerSettings) -> EtaSchedule:
    return EtaSchedule(
        settings.eta_schedule,
        settings.eta,
        settings.eta_warmup,
        settings.eta_step_every,
        settings.eta_step_factor,
        settings.cosine_commits,
        settings.eta_min,
    )


def _certificates(settings: ServerSettings) -> Reloading[Certificates] | None:
    certificate, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if certificate is None or key is None:
        return None
    paths = [path for path in (certificate, key, client_ca) if path is not None]
    return Reloading(paths, lambda: read_certificates(certificate, key, client_ca))


def _tokens(settings: ServerSettings) -> Reloading[Tokens] | None:
    path = settings.tokens
    return Reloading([path], lambda: read_tokens(path)) if path is not None else None


def _queue_of(settings: ServerSettings) -> MakeQueue:
    if settings.order == "round-robin":
        return RoundRobinQueue
    return lambda _, started: FifoQueue(started)
