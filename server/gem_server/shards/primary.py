"""Shard 0: orders all operations, and sends the order to the other shards."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from typing_extensions import override

from gem_core import Statistics
from gem_core.recipe import Recipe
from gem_core.shards import Shard
from gem_server.errors import Reason, RefusedError, StartupError
from gem_server.flow.commit_order import CommitOrder, Piece
from gem_server.flow.observer import CommitObserver
from gem_server.flow.requests import CommitRequest
from gem_server.peer_log import PeerLog
from gem_server.shards.agreement import PrimaryAgreement
from gem_server.shards.operations import (
    MAX_TOGETHER,
    Begin,
    CheckpointNeeded,
    CheckpointWritten,
    CommitExpected,
    CommitOrdered,
    CommitRefused,
    Ended,
    Finished,
    Forgotten,
    Hello,
    Joined,
    Operation,
    ParametersExpected,
    ParametersHeld,
    ParametersOrdered,
    PieceHeld,
    PullOrdered,
    Ready,
    RecordWritten,
    Report,
    RuleDecided,
    SessionRefused,
    ShardState,
    SnapshotOrdered,
    WorkerFigures,
)
from gem_server.shards.whole import WholeStatistics
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable
from gem_server.state.sessions import Session, Sessions
from gem_server.state.workers import WorkerState
from gem_server.version import Version

# Commits wait for a secondary that is this many operations behind.
MAX_BEHIND = 4096
# A secondary further behind is lost: joins and refusals do not wait.
MAX_QUEUED = 4 * MAX_BEHIND

logger = logging.getLogger(__name__)


class ShardLostError(Exception):
    """The connection between two shards broke; the run cannot go on."""


class Secondary:
    """One connected secondary, and the operations to send; `is_ready`: it has recovered."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.index = hello.shard.index
        self.is_ready = False
        self.state = ShardState()
        self._closed = False
        self._operations: deque[Operation] = deque()
        self._changed = asyncio.Event()
        self.has_room = asyncio.Event()
        self.has_room.set()

    def put(self, operation: Operation) -> bool:
        """Append an operation; return False if too many wait."""
        if len(self._operations) >= MAX_QUEUED:
            return False
        self._operations.append(operation)
        self._changed.set()
        if len(self._operations) >= MAX_BEHIND:
            self.has_room.clear()
        return True

    async def operations(self) -> AsyncIterator[list[Operation]]:
        """Yield operations as they come, for a message each, until `close`."""
        while True:
            while self._operations:
                yield self._next_message()
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()

    def _next_message(self) -> list[Operation]:
        """At most one operation has a layout, of up to MESSAGE_BYTES."""
        operations: list[Operation] = []
        while self._operations and len(operations) < MAX_TOGETHER:
            operations.append(self._operations.popleft())
            if isinstance(operations[-1], Joined):
                break
        if len(self._operations) < MAX_BEHIND:
            self.has_room.set()
        return operations

    def close(self) -> None:
        """End `operations` after the last one."""
        self._closed = True
        self._changed.set()


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that can be ordered next of its session; `complete`: each secondary holds its piece."""

    commit_id: int
    attempt: int
    missing: set[int]
    complete: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class PrimaryOrder(CommitOrder, CommitObserver):
    """Orders commits once all shards hold their pieces."""

    def __init__(self, shard: Shard, statistics: WholeStatistics, peer_log: PeerLog) -> None:
        self._shard = shard
        self.statistics = statistics
        self._peer_log = peer_log
        self._secondaries: dict[int, Secondary] = {}
        self._commits: dict[Session, _Commit] = {}
        self._has_all = asyncio.Event()
        self._decided = asyncio.Event()
        self._decision: Begin | RefusedError | None = None
        self.agreement = PrimaryAgreement(shard.count, self._send)
        self._initialize_lock = asyncio.Lock()
        self._initializing = 0  # sessions, one of which uploads
        self._attempt = 0
        self._parameters_attempt = 0
        self._has_parameters = False
        self._parameters_missing: set[int] = set()
        self._parameters_held = asyncio.Event()
        self._sessions: Sessions
        self.on_lost: Callable[[ShardLostError], None] = lambda _: None
        self.on_checkpoint_needed: Callable[[], None] = lambda: None
        self._is_closed = False

    def attach(self, sessions: Sessions) -> None:
        """Follow joins and ends of sessions."""
        self._sessions = sessions
        sessions.on_join.append(self._joined)
        sessions.on_wire_types.append(self._joined)
        sessions.on_end.append(self._ended)

    @property
    def missing(self) -> list[int]:
        """Secondaries that are not ready."""
        ready = {index for index, secondary in self._secondaries.items() if secondary.is_ready}
        return [index for index in range(1, self._shard.count) if index not in ready]

    @property
    def addresses(self) -> list[str]:
        """Addresses of the secondary shards, in shard order."""
        return [self._secondaries[index].hello.address for index in sorted(self._secondaries)]

    def connected(self, index: int) -> Secondary | None:
        """Return the secondary of this index."""
        return self._secondaries.get(index)

    def connect(self, hello: Hello) -> Secondary:
        """Connect a secondary. Raises MALFORMED, TOO_MANY, STARTING."""
        shard = hello.shard
        if shard.count != self._shard.count or not shard.is_secondary:
            raise RefusedError(
                Reason.MALFORMED, f"this is shard {self._shard}, and {shard} does not fit: give all the same number"
            )
        if shard.index in self._secondaries:
            raise RefusedError(
                Reason.TOO_MANY,
                f"shard {shard} is connected already: start each once",
                retry_after=1.0,
            )
        if isinstance(self._decision, Begin):
            raise RefusedError(
                Reason.STARTING, f"the other shards have begun without {shard}: start all again", retry_after=1.0
            )
        secondary = self._secondaries[shard.index] = Secondary(hello)
        address = f"localhost{hello.address}" if hello.address.startswith(":") else hello.address
        line = f"shard {shard} connected, at {address}"
        self._peer_log.log("shard-connected", str(shard), line, shard=shard.index, address=address)
        if len(self._secondaries) == self._shard.count - 1:
            self._has_all.set()
        return secondary

    async def begin_at(self, clocks: Sequence[int], run: str, run_name: str = "") -> int:
        """Wait for all shards; return the newest clock at which all can recover, this one at `clocks` of `run`.

        Raises StartupError if they have no clock in common.
        """
        not_connected = (index for index in range(1, self._shard.count) if index not in self._secondaries)
        if awaited := ", ".join(str(Shard(index, self._shard.count)) for index in not_connected):
            logger.info("waiting for shards %s", awaited, extra={"event": "waiting-for-shards"})
        await self._has_all.wait()
        hellos = [one.hello for one in self._secondaries.values()]
        common = set(clocks).intersection(*(hello.clocks for hello in hellos))
        if not common or (any(common) and {hello.run for hello in hellos} != {run}):
            found = [(0, clocks, run), *((one.shard.index, one.clocks, one.run) for one in hellos)]
            has = "; ".join(
                f"shard {index}: clocks {of[0]} to {of[-1]} of run {name or '-'}" for index, of, name in found
            )
            error = StartupError(
                f"the shards have no common state ({has}): bring back the data directories of one run, and start all "
                "with --resume, or choose new ones"
            )
            self._decide(RefusedError(Reason.MALFORMED, str(error)))
            raise error
        self._decide(Begin(max(common), run, run_name))
        return max(common)

    def _decide(self, decision: Begin | RefusedError) -> None:
        self._decision = decision
        self._decided.set()

    async def wait_begin(self) -> Begin:
        """Wait for `begin_at`. Raises MALFORMED."""
        await self._decided.wait()
        if isinstance(self._decision, Begin):
            return self._decision
        raise self._decision.again() if self._decision is not None else AssertionError("not decided")

    def close(self) -> None:
        """Disconnect the secondaries."""
        self.on_lost = lambda _: None
        self._is_closed = True
        for secondary in self._secondaries.values():
            secondary.close()

    def disconnected(self, secondary: Secondary) -> None:
        """Handle a broken connection: fatal, once the shards have begun to recover."""
        del self._secondaries[secondary.index]
        secondary.has_room.set()
        if not self._is_closed:
            name = f"{secondary.index}/{self._shard.count}"
            line = f"shard {name} disconnected"
            self._peer_log.log("shard-disconnected", name, line, level=logging.WARNING, shard=secondary.index)
        self._has_all.clear()
        if self._decided.is_set():
            self.agreement.lost(secondary.index)
            self.on_lost(ShardLostError(f"shard {secondary.index}/{self._shard.count} disconnected"))

    def handle(self, secondary: Secondary, report: Report) -> None:
        """Handle what a secondary reports."""
        match report:
            case Ready():
                secondary.is_ready = True
            case RecordWritten(clock):
                self.agreement.record_written(secondary.index, clock)
            case CheckpointNeeded(newest):
                if self.agreement.is_newest(newest):
                    self.on_checkpoint_needed()
            case CheckpointWritten(number, error):
                self.agreement.checkpoint_written(secondary.index, number, error)
            case PieceHeld():
                self._piece_held(secondary, report)
            case CommitRefused():
                self._piece_refused(report)
            case ParametersHeld(attempt):
                if attempt == self._parameters_attempt:
                    self._parameters_missing.discard(secondary.index)
                    if not self._parameters_missing:
                        self._parameters_held.set()
            case SessionRefused(session_id, refusal):
                if (session := self._sessions.find(session_id)) is not None:
                    name = session.worker.name
                    self._peer_log.refuse(name, f"shard {secondary.index} refused worker {name}: {refusal}")
                    self._sessions.end(session, WorkerState.LEFT, refusal)
            case ShardState():
                secondary.state = report
                self.statistics.keep(secondary.index, report)
            case WorkerFigures():
                self.statistics.keep(secondary.index, report)

    def _piece_held(self, secondary: Secondary, held: PieceHeld) -> None:
        """Note that a secondary holds its piece; the last one completes the commit."""
        session = self._sessions.find(held.session_id)
        commit = self._commits.get(session) if session is not None else None
        if commit is None or (commit.commit_id, commit.attempt) != (held.commit_id, held.attempt):
            return  # of an earlier commit or attempt
        commit.missing.discard(secondary.index)
        if not commit.missing and not commit.complete.done():
            commit.complete.set_result(None)

    def _piece_refused(self, refused: CommitRefused) -> None:
        """Refuse a commit on all shards because a secondary refused its piece, unless it is ordered already."""
        session = self._sessions.find(refused.session_id)
        commit = self._commits.get(session) if session is not None else None
        is_next = commit is not None and commit.commit_id == refused.commit_id
        if session is not None and is_next and not session.queued_sequence:
            self.refused(Piece(session, refused.commit_id), refused.refusal)
            if session.commit_call is not None:
                session.commit_call.end(refused.refusal.again())

    @override
    def upload_starts(self, piece: Piece) -> None:
        if piece.session.queued_sequence:
            return  # out of sequence: `enqueue` will refuse it
        commit = self._commits.get(piece.session)
        if commit is None or commit.commit_id != piece.commit_id:
            self._attempt += 1
            commit = self._commits[piece.session] = _Commit(piece.commit_id, self._attempt, set(self._secondaries))
        self._send(CommitExpected(piece.session.session_id, piece.commit_id, commit.attempt))

    @override
    async def wait_complete(self, piece: Piece) -> None:
        commit = self._commits.get(piece.session)
        if commit is None or commit.commit_id != piece.commit_id:
            raise RefusedError(Reason.STALLED, "another shard refused the commit: send it again", retry_after=1.0)
        await asyncio.shield(commit.complete)

    @override
    def refused(self, piece: Piece, refusal: RefusedError) -> None:
        if piece.session.queued_sequence or piece.session.ended is not None:
            return  # it is ordered, or the end says it
        commit = self._commits.get(piece.session)
        if commit is not None and commit.commit_id != piece.commit_id:
            return  # the session sends another one by now
        self._commits.pop(piece.session, None)
        self._send(CommitRefused(piece.session.session_id, piece.commit_id, refusal))

    @property
    @override
    def is_initialize_awaited(self) -> bool:
        return self._initializing > 1

    @asynccontextmanager
    @override
    async def initializing(self, session: Session) -> AsyncIterator[None]:
        self._initializing += 1
        try:
            async with self._initialize_lock:
                self._attempt += 1
                self._parameters_attempt = self._attempt
                self._parameters_missing = set(self._secondaries)
                self._parameters_held.clear()
                self._send(ParametersExpected(session.session_id, self._attempt))
                try:
                    yield
                finally:
                    if not self._has_parameters:
                        self._send(ParametersExpected(b"", 0))
        finally:
            self._initializing -= 1

    @override
    async def wait_initialized(self, session: Session) -> None:
        await self._parameters_held.wait()

    @override
    async def bound(self, central: CentralVariable, session: Session) -> None:
        self._has_parameters = True
        self._send(ParametersOrdered(session.session_id))

    @override
    async def committed(
        self,
        session: Session,
        request: CommitRequest,
        clock: int,
        staleness: int,
        statistics: Statistics,
        buffers: Buffers,
    ) -> None:
        del self._commits[session]
        self._send(
            CommitOrdered(session.session_id, request.commit_id, clock, request.eta, request.decays, request.withheld)
        )
        for secondary in list(self._secondaries.values()):
            await secondary.has_room.wait()
        if session.ended is not None:
            self._send(Ended(session.session_id, session.ended))

    @override
    def pulled(self, session: Session, is_first: bool) -> None:
        if session.held is None:
            raise AssertionError("a pull without a snapshot")
        self._send(PullOrdered(session.session_id, session.held.snapshot.version.clock))

    @override
    def pulled_without_session(self, version: Version) -> None:
        self._send(SnapshotOrdered(version.clock))

    @override
    def forgotten(self, session: Session) -> None:
        self._send(Forgotten(session.session_id))

    def rule_decided(self, recipe: Recipe | None, direction: str) -> None:
        """Announce what the first worker has decided."""
        self._send(RuleDecided(recipe, direction))

    def finished(self, reason: str) -> None:
        """Announce the run's end."""
        self._send(Finished(reason))

    def _joined(self, session: Session) -> None:
        """Send a session, or the wire types that it has changed."""
        info = session.join_info
        self._send(
            Joined(
                info.session_id,
                info.worker_name,
                info.layout,
                info.delta_wire_type,
                info.parameter_wire_type,
            )
        )

    def _ended(self, session: Session) -> None:
        if session.queued_sequence or session.ended is None:
            return  # `committed` announces it
        self._commits.pop(session, None)
        self._send(Ended(session.session_id, session.ended))

    def _send(self, operation: Operation) -> None:
        for secondary in self._secondaries.values():
            if not secondary.put(operation):
                self.on_lost(ShardLostError(f"shard {secondary.index} does not follow: {MAX_QUEUED} operations wait"))
