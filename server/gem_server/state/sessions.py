"""Sessions: joining, superseding, expiry."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from gem_core import Layout, WireType
from gem_core.wire_types import BLOCKS
from gem_server.errors import Reason, RefusedError
from gem_server.shared_memory.regions import SessionRegions
from gem_server.state.fairness import FairnessWindow
from gem_server.state.ledger import Entry, Ledger
from gem_server.state.memory import MemoryBudget
from gem_server.state.places import UNKNOWN_ORIGIN, Origin, session_to_end
from gem_server.state.run import Run, RunState
from gem_server.state.worker_copy import WorkerCopy
from gem_server.state.worker_snapshot import WorkerSnapshot
from gem_server.state.workers import Worker, Workers, WorkerState

# Number of ended sessions that are remembered, to distinguish an expired session from an unknown one.
REMEMBERED_ENDED_SESSIONS = 4096
SESSIONS_RETRY_SECONDS = 10.0
# The reason of a LeaveRequest by which a worker reports that it has finished its part of the run.
FINISHED_REASONS = ("done", "finished")


class TransportKind(Enum):
    """How a delta reached the server."""

    GRPC = "gRPC"
    LANE = "lane"
    SHARED_MEMORY = "shared memory"


class Endable(Protocol):
    """A running call."""

    def end(self, reason: Exception) -> None:
        """Raise `reason` where the call waits."""


class Queued(Protocol):
    """A commit in the queue."""

    def when_applied(self) -> "asyncio.Future[None]":
        """Return a future that completes when the commit is applied."""


class SnapshotStream(Protocol):
    """A stream of a session's snapshot."""

    def end(self, refusal: RefusedError) -> None:
        """Revoke the permission to read at once, and end the call."""


@dataclass(frozen=True, slots=True)
class JoinInfo:
    """A parsed `JoinRequest`."""

    session_id: bytes
    worker_name: str
    host_id: str
    layout: Layout
    delta_wire_type: WireType
    parameter_wire_type: WireType
    agent: str = ""
    device: str = ""
    steps_per_epoch: int = 0
    host_name: str = ""
    engine: str = ""
    # Indices of the FROZEN tensors of the run's layout whose values this worker has changed.
    changed_frozen: tuple[int, ...] = ()
    origin: Origin = UNKNOWN_ORIGIN

    @property
    def takes_differences(self) -> bool:
        """Whether replies are differences."""
        return self.parameter_wire_type in BLOCKS


@dataclass(slots=True, eq=False)
class Session:
    """One worker's membership.

    Attributes:
        number: counts joins from 1.
        copy: the worker's parameters, if replies are differences. Otherwise None.
        held: the worker's snapshot, which the applying task writes. None before the first pull.
        idle_calls: number of open calls that wait for the worker.
        reader: streams the snapshot.
        queued_sequence, queued_commit: the commit in the queue. The sequence is 0 if there is none.
        asked_at: when the session began to wait for a staging buffer.
        regions: shared memory that the session has, or had before.
        transport: the transport of the last commit.
        eta: the learning rate of the last Join or verdict, which is that of the next delta.
        takes_early_proceed: whether a reply may grant the buffer of the next commit.
    """

    join_info: JoinInfo
    worker: Worker
    entry: Entry
    number: int
    joined_at: float
    last_call: float
    copy: WorkerCopy | None = None
    open_calls: int = 0
    idle_calls: int = 0
    ended: RefusedError | None = None
    held: WorkerSnapshot | None = None
    commit_call: Endable | None = None
    initialize_call: Endable | None = None
    reader: SnapshotStream | None = None
    queued_pulls: int = 0
    queued_sequence: int = 0
    queued_commit: Queued | None = None
    asked_at: float | None = None
    uploads_slowly: bool = False
    regions: SessionRegions | None = None
    transport: TransportKind | None = None
    eta: float = 0.0
    takes_early_proceed: bool = False

    @property
    def session_id(self) -> bytes:
        """The session's id, 16 bytes, which is a secret."""
        return self.join_info.session_id

    @property
    def origin(self) -> Origin:
        """The origin that the worker joined from."""
        return self.join_info.origin

    @property
    def shares_memory(self) -> bool:
        """Whether it is connected to shared memory."""
        return self.regions is not None and self.regions.delta is not None

    def silent_for(self, now: float) -> float:
        """Seconds since the server heard of the worker; 0 while it receives from the worker or has to answer it."""
        is_busy = self.open_calls > self.idle_calls
        return 0.0 if is_busy else max(0.0, now - self.worker.last_call)

    def check_alive(self) -> None:
        """Raise if the session has ended."""
        if self.ended is not None:
            raise self.ended.again()

    def __repr__(self) -> str:
        return f"<Session of {self.worker.name}>"


@dataclass(slots=True)
class Sessions:
    """All live sessions."""

    run: Run
    ledger: Ledger
    workers: Workers
    memory: MemoryBudget
    max_sessions: int
    timeout: float
    bound_layout: Callable[[], Layout | None]
    fairness: FairnessWindow = field(default_factory=FairnessWindow)
    on_join: list[Callable[[Session], None]] = field(default_factory=list)
    on_end: list[Callable[[Session], None]] = field(default_factory=list)
    on_displaced: list[Callable[[Session], None]] = field(default_factory=list)
    on_wire_types: list[Callable[[Session], None]] = field(default_factory=list)
    _joined: int = 0
    _coming_back: dict[str, float] = field(default_factory=dict)  # lost workers' names; until when they are expected
    _restored_until: float | None = None
    _live: dict[bytes, Session] = field(default_factory=dict)
    _ended: OrderedDict[bytes, RefusedError] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._live)

    def live(self) -> list[Session]:
        """Live sessions by rank."""
        return sorted(self._live.values(), key=lambda session: session.worker.rank)

    def live_workers(self) -> list[Worker]:
        """Workers of live sessions by rank."""
        return [session.worker for session in self.live()]

    def in_turn(self) -> list[Session]:
        """Live sessions with budget, by rank."""
        if self.run.state is RunState.FINISHED:
            return []
        all_reserved = self.run.all_reserved
        return [s for s in self.live() if not s.worker.done and (s.worker.reserved or not all_reserved)]

    def find(self, session_id: bytes) -> Session | None:
        """The live session, if any."""
        return self._live.get(session_id)

    def get(self, session_id: bytes, now: float) -> Session:
        """Return the live session, and set the time of its last call. Raises UNKNOWN_SESSION, or why it ended."""
        session = self._live.get(session_id)
        if session is None:
            why = self._ended.get(session_id)
            if why is not None:
                raise why.again()
            raise RefusedError(
                Reason.UNKNOWN_SESSION,
                "this session has not joined this server (was it restarted?): Join with the same session id, then Pull",
            )
        session.last_call = session.worker.last_call = now
        return session

    def join(self, join_info: JoinInfo, now: float) -> Session:
        """Create a session, or return that of this id, which then uses the wire types of this Join.

        Ends another session of this worker; its id cannot join again. If all sessions are taken, it may end one of
        another worker (see `places`). Raises RefusedError, without changes.
        """
        join_info = self._with_layout_of_run(join_info)
        same = self._live.get(join_info.session_id)
        if same is not None:
            self._check_same_worker(same, join_info)
            self._take_wire_types(same, join_info)
            same.last_call = same.worker.last_call = now
            return same
        why = self._ended.get(join_info.session_id)
        if why is not None and why.reason is Reason.NEWER_SESSION:
            raise why.again()  # otherwise two processes with one name would end each other's sessions forever
        known = self.ledger.find(join_info.session_id)
        if known is not None and known.worker_name != join_info.worker_name:
            raise RefusedError(
                Reason.MALFORMED,
                "this session id belongs to another worker name: make a new random session id for each worker",
            )
        self.run.check_limit(join_info.steps_per_epoch)
        older = self._by_name(join_info.worker_name)
        displaced = self._place_for(join_info, now) if older is None else None
        leaving = older or displaced
        self.memory.promise(
            join_info.session_id,
            join_info.layout,
            takes_differences=join_info.takes_differences,
            instead_of=leaving.session_id if leaving else None,
        )
        if displaced is not None:
            self.end(
                displaced,
                WorkerState.EXPIRED,
                RefusedError(
                    Reason.EXPIRED_SESSION,
                    f"all {self.max_sessions} sessions were taken, most of them by one token or address, or this one "
                    "had not committed anything: its place went to another worker. Join again to wait for a place, and "
                    "raise limits.max_sessions",
                ),
            )
            for listener in self.on_displaced:
                listener(displaced)
        if older is not None:
            self.end(
                older,
                WorkerState.SUPERSEDED,
                RefusedError(
                    Reason.NEWER_SESSION,
                    f"another session joined as worker {join_info.worker_name!r}: give each worker its own name",
                ),
            )
        return self._admit(join_info, now)

    def end(self, session: Session, state: WorkerState, refusal: RefusedError) -> None:
        """End a session and its calls. A complete commit is still applied."""
        if session.ended is not None:
            return
        self.fairness.going(self.live_workers())
        session.ended = refusal
        session.worker.state = state
        self.run.count(session.worker, takes_part=False)
        session.copy = None
        del self._live[session.session_id]
        self._ended[session.session_id] = refusal
        while len(self._ended) > REMEMBERED_ENDED_SESSIONS:
            self._ended.popitem(last=False)
        self.memory.release(session.session_id)
        for call in (session.commit_call, session.initialize_call, session.reader):
            if call is not None:
                call.end(refusal.again())
        for listener in self.on_end:
            listener(session)

    def leave(self, session: Session, reason: str = "") -> None:
        """End a session on request, for this reason."""
        # A finished run no longer changes, so that its last checkpoint remains the newest. A worker without commits has
        # not done any part: perhaps it only looked at the model, or found no data.
        worker = session.worker
        has_done_its_part = reason in FINISHED_REASONS and worker.commits > 0
        worker.left_finished = has_done_its_part and self.run.state is not RunState.FINISHED
        self.end(
            session,
            WorkerState.FINISHED if self.run.state_for(session.worker) is RunState.FINISHED else WorkerState.LEFT,
            RefusedError(Reason.UNKNOWN_SESSION, "this session has left: Join again to continue"),
        )

    def end_lost(self, worker_name: str, now: float, *, comes_back: bool) -> bool:
        """End the session of a worker whose process has ended, as `expire` would do later.

        Args:
            worker_name: the worker's name. It is no error if the worker is unknown or has left.
            now: the time, in seconds.
            comes_back: whether its process is being restarted. If the others spend their budgets, the run then does not
                finish until this worker has joined, or `timeout` seconds have passed. This also holds for a worker that
                has left.

        Returns:
            Whether the worker had a session.
        """
        session, worker = self._by_name(worker_name), self.workers.get(worker_name)
        if comes_back and worker is not None and not worker.done:
            self._coming_back[worker_name] = now + self.timeout
        else:
            self._coming_back.pop(worker_name, None)
        if session is None:
            self.consider_finish()
            return False
        refusal = RefusedError(
            Reason.EXPIRED_SESSION,
            "an operator ended this session, because the worker's process had ended: Join with the same session id, "
            "then Pull",
        )
        self.end(session, WorkerState.EXPIRED, refusal)
        return True

    def expire(self, now: float) -> list[Session]:
        """End and return the sessions without a call. Restored workers that have not rejoined no longer take part."""
        if self._restored_until is None:
            self._restored_until = now + self.timeout
        elif now >= self._restored_until:
            self._restored_until = math.inf
            live = {session.worker.name for session in self._live.values()}
            for worker in self.workers.by_rank():
                if worker.name not in live:
                    self.run.count(worker, takes_part=False)
            self.run.stop_expecting()
            self.consider_start()
            self.consider_finish()
        if late := [name for name, deadline in self._coming_back.items() if now >= deadline]:
            for name in late:
                del self._coming_back[name]
            self.consider_finish()
        gone = [s for s in self._live.values() if s.open_calls == 0 and now - s.last_call >= self.timeout]
        for session in gone:
            self.end(
                session,
                WorkerState.EXPIRED,
                RefusedError(
                    Reason.EXPIRED_SESSION,
                    f"this session was silent for {self.timeout:g} s: Join with the same session id, then Pull",
                ),
            )
        return gone

    def count_present(self) -> int:
        """Number of workers that are there: those with a session, and those that have spent their budgets."""
        live = {session.worker.name for session in self._live.values()}
        return len(live) + sum(1 for worker in self.workers.by_rank() if worker.done and worker.name not in live)

    def absent(self) -> list[Worker]:
        """Known workers that have budget left and no session, by rank."""
        live = {session.worker.name for session in self._live.values()}
        return [worker for worker in self.workers.by_rank() if not worker.done and worker.name not in live]

    def consider_start(self) -> None:
        """Start training if possible."""
        self.run.consider_start(self.bound_layout() is not None, self.count_present())

    def consider_finish(self) -> None:
        """Finish if all live workers are done, and no other is expected."""
        if self._coming_back:
            return
        live = (session.worker for session in self._live.values())
        self.run.consider_finish(live, self.workers.anyone_done(), self.count_present())

    def check_layout(self, session: Session) -> None:
        """Raise LAYOUT_MISMATCH unless the layout is the run's."""
        self._check_layout(session.join_info.layout)

    def _admit(self, join_info: JoinInfo, now: float) -> Session:
        in_use = set(self._live)
        worker = self.workers.enlist(join_info.worker_name, {s.worker.name for s in self._live.values()})
        worker.host_rank = self._free_host_rank(join_info.host_id, worker)
        worker.host_id = join_info.host_id
        worker.agent, worker.device = join_info.agent, join_info.device
        worker.host_name, worker.engine = join_info.host_name, join_info.engine
        worker.wire_types = join_info.delta_wire_type, join_info.parameter_wire_type
        self.run.count(worker, takes_part=False)  # removes what the old limit counted
        worker.left_finished = False
        worker.steps_per_epoch = join_info.steps_per_epoch
        worker.limit = self.run.budget.limit_of(join_info.steps_per_epoch)
        self.run.count(worker, takes_part=True)
        worker.done = worker.limit is not None and worker.commits >= worker.limit
        worker.state = WorkerState.JOINED
        worker.sessions += 1
        worker.last_call = now
        entry = self.ledger.open_entry(join_info.session_id, join_info.worker_name, in_use)
        self._joined += 1
        copy = WorkerCopy(join_info.layout.parameter_count) if join_info.takes_differences else None
        session = Session(join_info, worker, entry, self._joined, joined_at=now, last_call=now, copy=copy)
        self._coming_back.pop(worker.name, None)
        self._ended.pop(join_info.session_id, None)
        self._live[join_info.session_id] = session
        self.fairness.joined(self.live_workers())
        self.consider_start()
        for listener in self.on_join:
            listener(session)
        return session

    def _with_layout_of_run(self, join_info: JoinInfo) -> JoinInfo:
        """Replace the layout of a returning worker by the run's, if they differ only in values of FROZEN tensors.

        A script may change FROZEN tensors (a target network, a teacher), and restart from its own checkpoint. Raises
        LAYOUT_MISMATCH for any other difference, and for a worker that has not committed in this run.
        """
        bound, worker = self.bound_layout(), self.workers.get(join_info.worker_name)
        differs = bound is not None and bound.digest != join_info.layout.digest
        if bound is not None and differs and worker is not None and worker.commits:
            changed = bound.whole.frozen_differences(join_info.layout.whole)
            if changed:
                return replace(join_info, layout=bound, changed_frozen=changed)
        self._check_layout(join_info.layout)
        return join_info

    def _place_for(self, join_info: JoinInfo, now: float) -> Session | None:
        """Return the session that must end so that this one can join. None if there is room. Raises TOO_MANY."""
        if len(self._live) < self.max_sessions:
            return None
        trains = self.run.state is RunState.TRAINING
        displaced = session_to_end(list(self._live.values()), join_info.origin, now, trains=trains)
        if displaced is None:
            raise RefusedError(
                Reason.TOO_MANY,
                f"{len(self._live)} workers are joined, and no more are allowed: raise limits.max_sessions, or end "
                "some of them (gemps status lists them)",
                retry_after=SESSIONS_RETRY_SECONDS,
            )
        return displaced

    def _check_layout(self, layout: Layout) -> None:
        bound = self.bound_layout()
        if bound is None or bound.digest == layout.digest:
            return
        difference = bound.first_difference(layout) or "the layouts differ"
        raise RefusedError(
            Reason.LAYOUT_MISMATCH,
            f"this worker's model is not the run's (start it with the run's model, or a new run): {difference}",
            metadata={"difference": difference[:1024]},
        )

    def _check_same_worker(self, live: Session, join_info: JoinInfo) -> None:
        if live.worker.name != join_info.worker_name or live.join_info.layout.digest != join_info.layout.digest:
            raise RefusedError(
                Reason.MALFORMED,
                "this session id is in use by a worker of another name or layout: make a new random session id",
            )

    def _take_wire_types(self, live: Session, join_info: JoinInfo) -> None:
        """Use the wire types of a repeated Join for the commits and replies that follow.

        Version, moment, sequence and snapshot remain. Only the copy for differences depends on an encoding; it is
        created anew, so the next reply is whole. A reply that is being sent keeps its encoding. Raises MEMORY, without
        changes, if there is no room for the copy.
        """
        wanted = (join_info.delta_wire_type, join_info.parameter_wire_type)
        if wanted == (live.join_info.delta_wire_type, live.join_info.parameter_wire_type):
            return
        takes_differences, layout = join_info.takes_differences, live.join_info.layout
        self.memory.promise(live.session_id, layout, takes_differences=takes_differences)
        live.join_info = replace(live.join_info, delta_wire_type=wanted[0], parameter_wire_type=wanted[1])
        live.worker.wire_types = wanted
        live.copy = WorkerCopy(layout.parameter_count) if takes_differences else None
        for listener in self.on_wire_types:
            listener(live)

    def _by_name(self, name: str) -> Session | None:
        return next((session for session in self._live.values() if session.worker.name == name), None)

    def _free_host_rank(self, host_id: str, worker: Worker) -> int:
        taken = {s.worker.host_rank for s in self._live.values() if s.worker.host_id == host_id}
        if worker.host_id == host_id and worker.sessions and worker.host_rank not in taken:
            return worker.host_rank
        return next(rank for rank in range(len(taken) + 1) if rank not in taken)
