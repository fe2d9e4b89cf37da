"""Shards 1, 2, ...: apply the primary's operations in its order."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from typing_extensions import override

from gem_core import Statistics
from gem_core.recipe import Recipe
from gem_server.durability.checkpointer import Checkpointer
from gem_server.durability.files import StorageError
from gem_server.errors import Reason, RefusedError
from gem_server.flow.applier import Applier
from gem_server.flow.commit_order import CommitOrder, Piece
from gem_server.flow.journal import Journal
from gem_server.flow.observer import CommitObserver
from gem_server.flow.reader import Reader
from gem_server.flow.requests import CommitRequest, InitializeRequest, Request
from gem_server.flow.staging_pool import StagingPool
from gem_server.shards.agreement import CheckpointReplacedError, SecondaryAgreement
from gem_server.shards.operations import (
    CheckpointComplete,
    CheckpointCut,
    CommitExpected,
    CommitOrdered,
    CommitRefused,
    DurableEverywhere,
    Ended,
    Finished,
    Forgotten,
    Joined,
    Operation,
    ParametersExpected,
    ParametersHeld,
    ParametersOrdered,
    PieceHeld,
    PullOrdered,
    RecordEnded,
    Report,
    RuleDecided,
    SessionRefused,
    SnapshotOrdered,
)
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable
from gem_server.state.run import Run
from gem_server.state.sessions import JoinInfo, Session, Sessions
from gem_server.state.workers import WorkerState
from gem_server.version import Version

# Seconds that calls wait for operations, and a copy of theta for calls.
PATIENCE_SECONDS = 30.0
# Of a Join at a wrong server.
JOIN_SECONDS = 5.0
MAX_WAITING = 4096
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


class OutOfOrderError(Exception):
    """This shard's state is not what the primary's order requires."""


@dataclass(slots=True, eq=False)
class OperationRequest(Request[None]):
    """An operation in the queue."""

    session: None
    execute: Callable[[], Awaitable[None]]

    async def _execute(self, applier: Applier) -> None:
        await self.execute()
        self.resolve(None)


@dataclass(slots=True)
class _Commits:
    """What is known of a session's next commit.

    `expected`: its id, by `attempt`; `asked`: that of the last call; `refused`: one that cannot come again; `early`:
    refused here before it is expected; `piece`: complete, not ordered.
    """

    expected: int = 0
    attempt: int = 0
    asked: int = 0
    refused: CommitRefused | None = None
    early: CommitRefused | None = None
    piece: CommitRequest | None = None
    waiting: set["asyncio.Future[None]"] = field(default_factory=set)


class SecondaryOrder(CommitOrder, CommitObserver):
    """Holds uploads until the primary orders them. `report` sends to the primary."""

    def __init__(self, clock: Callable[[], float], *, primary: str, forgets: bool) -> None:
        self._clock = clock
        self._primary = primary
        self._forgets = forgets
        self._commits: dict[bytes, _Commits] = {}
        self._to_forget: dict[bytes, Session] = {}
        self._refused_joins: dict[bytes, RefusedError] = {}
        self._clocks: deque[int] = deque()
        self._first_expected = ParametersExpected(b"", 0)
        self._first: InitializeRequest | None = None
        self._awaiting_first = 0  # sessions
        self._progress: set[asyncio.Future[None]] = set()
        self._applier: Applier
        self._central: CentralVariable
        self._run: Run
        self._sessions: Sessions
        self._staging: StagingPool
        self._checkpointer: Checkpointer | None = None
        self._journal: Journal
        self._kept: tuple[Reader, asyncio.TimerHandle] | None = None
        self._kept_clock = 0
        self._writing: asyncio.Task[None] | None = None
        self.report: Callable[[Report], None] = lambda _: None
        self.on_rule_decided: Callable[[Recipe | None, str], None] = lambda _, __: None
        self.agreement = SecondaryAgreement(lambda report: self.report(report))

    def attach(
        self,
        applier: Applier,
        central: CentralVariable,
        run: Run,
        sessions: Sessions,
        staging: StagingPool,
        journal: Journal,
        checkpointer: Checkpointer | None,
    ) -> None:
        """Set the parts that operations change."""
        self._journal = journal
        self._checkpointer = checkpointer
        self._applier = applier
        self._central = central
        self._run = run
        self._sessions = sessions
        self._staging = staging
        applier.on_commit.append(self._wake)

    def receive(self, operation: Operation) -> None:
        """Queue an operation; let uploads start at once."""
        match operation:
            case CommitExpected():
                self._expect_commit(operation)
            case CommitRefused():
                self._refuse_commit(operation)
            case CommitOrdered():
                self._order_commit(operation)
            case Ended(session_id, refusal):
                if session_id in self._commits:
                    self._drop(self._commits.pop(session_id), refusal.again())
                self._queue(partial(self._end, operation))
            case Joined():
                self._queue(partial(self._join, operation))
            case PullOrdered():
                self._queue(partial(self._pull, operation))
            case Forgotten(session_id):
                self._queue(partial(self._forget, session_id))
            case ParametersExpected():
                self._expect_parameters(operation)
            case ParametersOrdered():
                self._order_parameters(operation)
            case Finished(reason):
                self._queue(partial(self._finish, reason))
            case RecordEnded():
                self._queue(self._end_record)
            case DurableEverywhere(clock):
                self.agreement.durable_everywhere(clock)
            case CheckpointCut(number):
                self.agreement.checkpoint_cut(number)
                self._queue(partial(self._cut, number))
            case SnapshotOrdered(clock):
                self._queue(partial(self._keep, clock))
            case CheckpointComplete(number):
                self.agreement.checkpoint_complete(number)
            case RuleDecided():
                self._queue(partial(self._decide, operation))

    @override
    async def wait_expected(self, piece: Piece) -> None:
        commits = self._commits_of(piece.session.session_id)
        commits.asked = piece.commit_id
        while commits.expected != piece.commit_id:
            if (refused := commits.refused) is not None and refused.commit_id == piece.commit_id:
                raise refused.refusal.again()
            self._run.check_open(piece.session.worker)
            await _wait(commits.waiting)
            piece.session.check_alive()

    def refused(self, piece: Piece, refusal: RefusedError) -> None:
        """See CommitOrder: the primary refuses it, too."""
        commits = self._commits.get(piece.session.session_id)
        if commits is None or commits.piece is not None:
            return
        report = CommitRefused(piece.session.session_id, piece.commit_id, refusal)
        if commits.expected == piece.commit_id:
            self._report_refused(commits, report)
        elif refusal.retry_after is None:
            commits.early = report

    def _report_refused(self, commits: "_Commits", report: CommitRefused) -> None:
        commits.expected, commits.early = 0, None
        self.report(report)

    @override
    def holds_back(self, request: CommitRequest | InitializeRequest) -> bool:
        session_id = request.session.session_id
        if isinstance(request, InitializeRequest):
            if self._central.layout is not None:
                request.resolve(False)
            elif self._first_expected.session_id == session_id:
                self._first = request
                self.report(ParametersHeld(self._first_expected.attempt))
            else:
                request.fail(_replaced())
            return True
        commits = self._commits_of(session_id)
        if commits.expected == request.commit_id:
            commits.piece = request
            self.report(PieceHeld(session_id, request.commit_id, commits.attempt))
        else:
            self._release(request, _replaced())
        return True

    @property
    @override
    def is_initialize_awaited(self) -> bool:
        return self._awaiting_first > 0

    @asynccontextmanager
    @override
    async def initializing(self, session: Session) -> AsyncIterator[None]:
        self._awaiting_first += 1
        try:
            while self._central.layout is None and self._first_expected.session_id != session.session_id:
                await _wait(self._progress)
        finally:
            self._awaiting_first -= 1
        yield

    def first_upload_stalled(self, session: Session) -> None:
        """The primary ends the session: its piece may be complete there, and would wait for this one."""
        refusal = RefusedError(
            Reason.UNKNOWN_SESSION, "the upload of the first parameters to another shard stalled: Join again"
        )
        self.report(SessionRefused(session.session_id, refusal))

    @override
    async def wait_snapshot(self, session: Session, version: Version | None) -> bool:

        def is_there() -> bool:
            session.check_alive()
            held = session.held
            return held is not None and (version is None or held.snapshot.version.clock >= version.clock)

        await self._wait_for(is_there, "this session's pull at the primary has not come: do that first")
        return True

    @override
    async def wait_kept(self, clock: int) -> None:
        await self._wait_for(lambda: self._kept_clock >= clock, "this pull at the primary has not come: do that first")

    @override
    async def wait_joined(self, session_id: bytes) -> Session | None:
        await self._wait_for(
            lambda: self._sessions.find(session_id) is not None or session_id in self._refused_joins,
            f"this is not the primary: give workers its address, {self._primary}",
            JOIN_SECONDS,
        )
        refusal = self._refused_joins.pop(session_id, None)
        if refusal is not None and self._sessions.find(session_id) is None:
            raise refusal.again()
        return self._sessions.get(session_id, self._clock())

    async def committed(
        self,
        session: Session,
        request: CommitRequest,
        clock: int,
        staleness: int,
        statistics: Statistics,
        buffers: Buffers,
    ) -> None:
        """See CommitObserver: check the order."""
        if (ordered := self._clocks.popleft()) != clock:
            raise OutOfOrderError(f"this shard is at clock {clock}, and the primary at {ordered}")

    async def _wait_for(self, is_there: Callable[[], bool], message: str, seconds: float = PATIENCE_SECONDS) -> None:
        if len(self._progress) >= MAX_WAITING:
            raise RefusedError(
                Reason.TOO_MANY, f"{MAX_WAITING} calls wait for the primary: try again later", retry_after=RETRY_SECONDS
            )
        try:
            async with asyncio.timeout(seconds):
                while not is_there():
                    await _wait(self._progress)
        except TimeoutError:
            raise RefusedError(Reason.STARTING, message, retry_after=RETRY_SECONDS) from None

    def _commits_of(self, session_id: bytes) -> _Commits:
        return self._commits.setdefault(session_id, _Commits())

    def _expect_commit(self, expected: CommitExpected) -> None:
        """Let uploads of this commit continue, and drop the piece of another commit of its session."""
        commits = self._commits_of(expected.session_id)
        commit_id = expected.commit_id
        if commits.piece is not None and commits.piece.commit_id != commit_id:
            self._drop(commits, _replaced())
        commits.expected, commits.attempt, commits.refused = commit_id, expected.attempt, None
        if commits.early is not None and commits.early.commit_id == commit_id:
            self._report_refused(commits, commits.early)
        self._wake_all(commits.waiting)

    def _refuse_commit(self, refused: CommitRefused) -> None:
        """Drop the piece of a commit that another shard refused, and end the call that uploads it."""
        commits = self._commits_of(refused.session_id)
        commit_id, refusal = refused.commit_id, refused.refusal
        if commits.piece is not None and commits.piece.commit_id == commit_id:
            self._drop(commits, refusal.again())
        commits.expected = 0
        commits.refused = refused if refusal.retry_after is None else None
        session = self._sessions.find(refused.session_id)
        if session is not None and session.commit_call is not None and commits.asked == commit_id:
            session.commit_call.end(refusal.again())

    def _order_commit(self, ordered: CommitOrdered) -> None:
        """Queue the piece of a commit that all shards hold."""
        commits = self._commits_of(ordered.session_id)
        piece, commits.piece = commits.piece, None
        if piece is None or piece.commit_id != ordered.commit_id:
            raise OutOfOrderError(f"the primary ordered a commit, clock {ordered.clock}, whose piece is not here")
        commits.expected = 0
        piece.eta, piece.decays, piece.withheld = ordered.eta, ordered.decays, ordered.withheld
        self._clocks.append(ordered.clock)
        self._applier.submit(piece)

    def _expect_parameters(self, expected: ParametersExpected) -> None:
        """Let the upload of first parameters by this session continue, and fail that of another one."""
        if self._first is not None:
            self._first.fail(_replaced())
            self._first = None
        self._first_expected = expected
        self._wake()

    def _order_parameters(self, ordered: ParametersOrdered) -> None:
        """Queue the first parameters that all shards hold."""
        first, self._first = self._first, None
        if first is None or first.session.session_id != ordered.session_id:
            raise OutOfOrderError("the primary ordered first parameters that are not here")
        self._queue(partial(self._initialize, first))

    def _queue(self, execute: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await execute()
            self._wake()

        self._applier.submit(OperationRequest(None, run))

    async def _join(self, joined: Joined) -> None:
        info = JoinInfo(
            joined.session_id,
            joined.worker_name,
            "",
            joined.layout,
            joined.delta_wire_type,
            joined.parameter_wire_type,
        )
        try:
            self._sessions.join(info, self._clock())
        except RefusedError as error:
            refusal = error
            if error.retry_after is not None:
                refusal = RefusedError(Reason.UNKNOWN_SESSION, f"another shard refused to join: {error}")
            while len(self._refused_joins) >= MAX_WAITING:
                del self._refused_joins[next(iter(self._refused_joins))]
            self._refused_joins[joined.session_id] = refusal
            self.report(SessionRefused(joined.session_id, refusal))
        else:
            self._refused_joins.pop(joined.session_id, None)

    async def _end(self, ended: Ended) -> None:
        session = self._sessions.find(ended.session_id)
        if session is None:
            return
        if self._forgets and session.held is not None:
            self._to_forget[ended.session_id] = session
        self._sessions.end(session, WorkerState.LEFT, ended.refusal)

    async def _pull(self, pull: PullOrdered) -> None:
        session = self._sessions.find(pull.session_id)
        if session is None:
            return  # refused here
        if pull.clock != self._central.clock:
            raise OutOfOrderError(f"this shard is at clock {self._central.clock}, and the primary pulled {pull.clock}")
        await self._applier.refresh(session)

    async def _keep(self, clock: int) -> None:
        if clock != self._central.clock:
            raise OutOfOrderError(f"this shard is at clock {self._central.clock}, and the primary read {clock}")
        before, self._kept = self._kept, None
        with suppress(RefusedError):  # no room: pulls of it will be refused
            kept = await self._applier.keep_theta()
            self._kept = kept, asyncio.get_running_loop().call_later(PATIENCE_SECONDS, kept.close)
        if before is not None:
            reader, closing = before
            closing.cancel()
            reader.close()
        self._kept_clock = clock

    async def _forget(self, session_id: bytes) -> None:
        session = self._to_forget.pop(session_id, None)
        if session is not None:
            await self._applier.forget(session)

    async def _initialize(self, first: InitializeRequest) -> None:
        first.resolve(await self._applier.initialize(first))
        if self._first is not None:
            self._first.resolve(False)
            self._first = None

    async def _finish(self, reason: str) -> None:
        self._run.finish(reason)
        for commits in self._commits.values():
            self._wake_all(commits.waiting)

    async def _decide(self, decided: RuleDecided) -> None:
        self.on_rule_decided(decided.recipe, decided.direction)

    async def _end_record(self) -> None:
        self.agreement.record_ended()

    async def _cut(self, number: int) -> None:
        checkpointer = self._checkpointer
        if checkpointer is None:
            return
        begun = asyncio.Event()

        async def write() -> None:
            try:
                await checkpointer.write_ordered(number, begun.set)
            except StorageError:
                pass  # the server stops
            except CheckpointReplacedError:
                logger.info("the primary began another checkpoint before this one was complete")
            except (OSError, RefusedError) as error:
                logger.warning("no checkpoint of all shards (%s)", error, extra={"event": "no-checkpoint"})

        self._writing = asyncio.create_task(write())
        await begun.wait()

    async def close(self) -> None:
        """End a checkpoint that the primary will not complete."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])

    def _drop(self, commits: _Commits, refusal: RefusedError) -> None:
        piece, commits.piece = commits.piece, None
        if piece is not None:
            self._release(piece, refusal)
        self._wake_all(commits.waiting)

    def _release(self, piece: CommitRequest, refusal: RefusedError) -> None:
        session = piece.session
        session.queued_sequence = 0
        session.queued_commit = None
        self._run.release(session.worker)
        self._staging.release(piece.hold)
        self._journal.release()
        piece.was_applied()  # wakes repeats, which find that it was not
        piece.fail(refusal)

    def _wake(self) -> None:
        self._wake_all(self._progress)

    def _wake_all(self, waiting: set["asyncio.Future[None]"]) -> None:
        for future in list(waiting):
            if not future.done():
                future.set_result(None)


async def _wait(waiting: set["asyncio.Future[None]"]) -> None:
    future = asyncio.get_running_loop().create_future()
    waiting.add(future)
    try:
        await future
    finally:
        waiting.discard(future)


def _replaced() -> RefusedError:
    return RefusedError(
        Reason.STALE_BASE, "the primary expects another upload of this session: Join the primary, Pull, drop this delta"
    )
