"""The way of a commit from its header to the queue.

Repeats are answered from the ledger. For a new commit the caller calls `stage`, and then receives chunks and calls
`complete`, or calls `complete_shared`. The decision whether a commit is applied is made by `admit` within `enqueue`,
after the last wait. Earlier calls of `admit` only refuse a commit before its payload is sent.
"""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from gem_core import ChecksumError, UpdateRule, WireType
from gem_core.checked_copy import checked_copy
from gem_core.checksum import word_sum
from gem_core.chunking.assemble import check_rest
from gem_core.errors import RecipeError
from gem_core.norm import sampled_norm
from gem_core.payload import PayloadFormat, selected_format
from gem_core.recipe import check_decays
from gem_core.selection import Selection
from gem_core.thresholds import COPY_ELSEWHERE_ELEMENTS
from gem_server.errors import Reason, RefusedError
from gem_server.flow.applier import Applier
from gem_server.flow.calls import Call
from gem_server.flow.commit_order import CommitOrder, Piece
from gem_server.flow.journal import Journal
from gem_server.flow.requests import Applied, CommitRequest, SnapshotRequest
from gem_server.flow.staging_pool import BufferLease, Purpose, StagingBuffer, StagingPool
from gem_server.shared_memory.regions import DeltaRegion
from gem_server.state.buffers import check_finite
from gem_server.state.central_variable import CentralVariable
from gem_server.state.ledger import Content, Verdict
from gem_server.state.recipe import RunRecipe
from gem_server.state.run import Run
from gem_server.state.sessions import Session, Sessions
from gem_server.version import Handle, Version

Result = TypeVar("Result")

# Seconds after which a worker may send its piece again. By then the other shards have refused theirs, and can receive
# them again.
RETRY_SECONDS = 0.1


class Header(NamedTuple):
    """The header of a commit, as in commit.proto.

    Attributes:
        checksum: the header's CRC32C of the payload, or its word sum for SHARED_MEMORY. None if it has neither.
        handle: where the PARAMETERs lie in shared memory.
        scale: factor of all PARAMETERs.
        optimizer_steps: steps of the worker's own optimizer in this delta.
        buffers: the BUFFERs in the payload. None if it has all.
        eta, decays: rate and decays of the delta, in a run with a recipe.
    """

    sequence: int
    base_version: Version
    wire_type: WireType
    byte_count: int
    loss: float | None
    samples: int
    checksum: int | None
    handle: Handle | None = None
    scale: float | None = None
    local_steps: int = 0
    leaves: bool = False
    optimizer_steps: int = 0
    commit_id: int = 0
    buffers: Selection | None = None
    eta: float | None = None
    decays: tuple[float, ...] = ()


class CommitService:
    """Handles the commits of all streams."""

    def __init__(
        self,
        *,
        central: CentralVariable,
        run: Run,
        sessions: Sessions,
        staging: StagingPool,
        applier: Applier,
        draining: Callable[[], bool],
        copy_threads: Executor,
        journal: Journal,
        ordering: CommitOrder,
        recipe: RunRecipe,
        rule: UpdateRule,
        measures_norms: bool,
    ) -> None:
        self._central = central
        self._rule = rule
        self._recipe = recipe
        self._copy_threads = copy_threads
        self._run = run
        self._sessions = sessions
        self._staging = staging
        self._applier = applier
        self._draining = draining
        self.journal = journal
        self.ordering = ordering
        self.measures_norms = measures_norms
        self._formats: dict[WireType, PayloadFormat] = {}

    def is_next(self, session: Session, header: Header) -> bool:
        """Whether this commit is new. Raises RefusedError if invalid."""
        session.check_alive()
        self._sessions.check_layout(session)
        if self._central.layout is None:
            raise RefusedError(
                Reason.NOT_INITIALIZED, "there are no parameters yet: Initialize, then Pull, then Commit"
            )
        if header.sequence == 0:
            raise RefusedError(Reason.MALFORMED, "sequence 0: start with sequence 1")
        if header.sequence == session.queued_sequence or header.sequence <= session.entry.last_applied:
            return False
        self._check_form(session, header)
        return True

    async def answer_repeat(self, session: Session, call: Call, header: Header) -> Applied:
        """Return a repeated commit's stored verdict.

        Raises:
            RefusedError: STALLED if the piece of an older stream, which waited for other shards, was given up
                meanwhile; SEQUENCE_REUSED if the repeat differs from what was applied.
        """
        queued = session.queued_commit
        if queued is not None and header.sequence == session.queued_sequence:
            await asyncio.wait([queued.when_applied()])  # completed by an older stream
            session.check_alive()
            if header.sequence > session.entry.last_applied:
                raise RefusedError(
                    Reason.STALLED,
                    f"another shard refused sequence {header.sequence} meanwhile, so it was not applied: send it again",
                    retry_after=RETRY_SECONDS,
                )
        return await self._repeat(session, call, header)

    async def stage(self, session: Session, call: Call, header: Header) -> "StagedCommit":
        """Wait for a staging buffer. Raises STORAGE_FULL or WAITING_ROOM, or as `admit`."""
        piece = Piece(session, header.commit_id)
        await self.ordering.wait_expected(piece)
        if not self.journal.has_room():
            await self.journal.make_room()
        hold = self._staging.try_acquire(session, call, Purpose.COMMIT)
        if hold is None:
            self.admit(session, header)
            hold = await self._staging.reserve(session, call, Purpose.COMMIT)
            try:
                self.admit(session, header)
            except BaseException:
                self._staging.release(hold)
                raise
        self.ordering.upload_starts(piece)
        return StagedCommit(self, header, hold, piece)

    def format(self, wire_type: WireType, buffers: Selection | None = None) -> PayloadFormat:
        """Return the format of payloads with these BUFFERs (None: all). Raises SelectionError."""
        layout = self._central.layout
        if layout is None:
            raise AssertionError("no layout yet")
        if buffers is not None:
            return selected_format(layout, wire_type, buffers)
        known = self._formats.get(wire_type)
        if known is None:
            known = self._formats[wire_type] = PayloadFormat(layout, wire_type)
        return known

    async def _repeat(self, session: Session, call: Call, header: Header) -> Applied:
        entry = session.entry
        if header.sequence < entry.last_applied or entry.content is None or entry.verdict is None:
            raise RefusedError(
                Reason.SEQUENCE_GAP,
                f"sequence {header.sequence} was applied before the last one, {entry.last_applied}: use "
                f"{entry.last_applied + 1} next",
                metadata={"last_applied": str(entry.last_applied)},
            )
        if header.checksum is None:
            # No bug of the caller: a commit that it gave up may have come late, behind its Join and Pull.
            raise RefusedError(
                Reason.SEQUENCE_GAP,
                f"sequence {header.sequence} was applied already: Join, Pull, and use {entry.last_applied + 1} next (a "
                "repeat has payload_crc32c in its header)",
                metadata={"last_applied": str(entry.last_applied)},
            )
        if Content(int(header.wire_type), header.byte_count, header.checksum) != entry.content:
            raise RefusedError(
                Reason.SEQUENCE_REUSED,
                f"sequence {header.sequence} was applied with other content: a new commit needs sequence "
                f"{entry.last_applied + 1}",
                metadata={"last_applied": str(entry.last_applied)},
            )
        session.worker.telemetry.duplicates += 1
        request = SnapshotRequest(session, call, None)
        self._applier.submit(request)
        reader = await request.done
        applied = Applied(self._stored(entry.verdict, session), reader)
        return await self.once_durable(applied, self._central.clock)

    def _stored(self, verdict: Verdict, session: Session) -> Verdict:
        session.eta = self._run.next_eta
        return verdict._replace(
            duplicate=True,
            run_state=self._run.state_for(session.worker),
            next_eta=session.eta,
            progress=self._run.progress,
        )

    def admit(self, session: Session, header: Header) -> None:
        """Raise RefusedError unless this commit can be applied next."""
        session.check_alive()
        if self._draining():
            raise RefusedError(
                Reason.DRAINING, "the server is shutting down: try again when it is back", retry_after=1.0
            )
        last = session.entry.last_applied
        if header.sequence != last + 1 or session.queued_sequence:
            raise RefusedError(
                Reason.SEQUENCE_GAP,
                f"sequence {header.sequence} cannot follow {session.queued_sequence or last}: use "
                f"{(session.queued_sequence or last) + 1} next",
                metadata={"last_applied": str(last)},
            )
        self._run.check_open(session.worker)
        self._check_base(session, header.base_version)

    def _check_form(self, session: Session, header: Header) -> None:
        expected_type = session.join_info.delta_wire_type
        if header.wire_type is WireType.SHARED_MEMORY:
            _region_of(session, header)
        elif header.handle is not None:
            raise RefusedError(
                Reason.WIRE_TYPE, "a handle is for wire type SHARED_MEMORY: set that, or leave the handle out"
            )
        elif header.wire_type is not expected_type:
            raise RefusedError(
                Reason.WIRE_TYPE,
                f"{header.wire_type.name} is not what this session settled on for deltas: use {expected_type.name}",
            )
        expected_bytes = self.format(expected_type, header.buffers).byte_count
        if header.byte_count != expected_bytes:
            raise RefusedError(
                Reason.SIZE_MISMATCH,
                f"byte_count is {header.byte_count}; a delta of this layout in {header.wire_type.name} must have "
                f"{expected_bytes} bytes",
            )
        if header.handle is not None and header.handle.byte_count != expected_bytes:
            raise _no_such_region()
        self._check_local_steps(header)
        self._check_rates(header)

    def _check_local_steps(self, header: Header) -> None:
        """Refuse a commit that has not the run's number of gradients. A worker's last commit may have fewer."""
        wanted, found = max(1, self._rule.worker_step.local_steps), max(1, header.local_steps)
        if found != wanted and not (header.leaves and found < wanted):
            raise RefusedError(
                Reason.MALFORMED,
                f"local_steps is {header.local_steps}, and this run has {wanted}: commit {wanted} gradients at a time "
                "(fewer only with `leaves`, before Leave)",
            )

    def _check_rates(self, header: Header) -> None:
        """Refuse a commit without rates in a run with a recipe, and one with rates in a run without."""
        recipe = self._recipe.recipe
        if recipe is None:
            if header.eta is not None or header.decays:
                raise RefusedError(
                    Reason.MALFORMED,
                    "this run has no recipe, so its deltas have the server's next_eta: leave eta and decays out",
                )
            return
        if header.eta is None or not 0 <= header.eta < math.inf:
            raise RefusedError(
                Reason.MALFORMED,
                f"eta is {'unset' if header.eta is None else header.eta}, and this run has a recipe: send the learning "
                "rate of its first group, a finite number of at least 0",
            )
        try:
            check_decays(header.decays, len(recipe.groups))
        except RecipeError as error:
            raise RefusedError(Reason.MALFORMED, str(error)) from None

    def _check_base(self, session: Session, base: Version) -> None:
        if base.incarnation != self._central.incarnation:
            raise RefusedError(
                Reason.UNKNOWN_INCARNATION,
                "base_version is unset, or of another server process (the server was restarted): Pull, and drop this "
                "delta",
                metadata={"incarnation": str(self._central.incarnation)},
            )
        if session.held is None:
            raise RefusedError(Reason.STALE_BASE, "this session has not pulled yet: Pull, and drop this delta")
        held = session.held.snapshot.version
        if session.queued_pulls or held != base:
            raise RefusedError(
                Reason.STALE_BASE,
                f"base_version has clock {base.clock}, but this session pulled clock {held.clock} or newer since: "
                "Pull, and drop this delta",
                metadata={"snapshot_clock": str(held.clock)},
            )

    def enqueue(self, staged: "StagedCommit", checksum: int, delta_norm: float | None) -> CommitRequest:
        """Decide whether a complete commit can be applied, reserve budget for it, and enqueue it."""
        hold, header = staged.hold, staged.header
        session = hold.session
        self.admit(session, header)
        payload = staged.payload
        if not staged.is_rest_finite and session.held is not None:
            check_finite(session.held.snapshot.buffers, payload, staged.rest)
        self._run.reserve(session.worker)
        hold.complete = True
        session.queued_sequence = header.sequence
        request = CommitRequest(
            session,
            hold.call,
            hold,
            header.sequence,
            header.base_version,
            Content(int(header.wire_type), header.byte_count, checksum),
            header.loss,
            header.samples,
            header.optimizer_steps or header.local_steps,
            session.eta if header.eta is None else header.eta,
            header.commit_id,
            payload if payload.rest_bytes or header.buffers is not None else None,
            header.decays,
            delta_norm,
        )
        session.queued_commit = request
        if not self.ordering.holds_back(request):
            self._applier.submit(request)
        return request

    def refused(self, session: Session, header: Header, refusal: RefusedError) -> None:
        """Tell the other shards that a new commit was refused."""
        self.ordering.refused(Piece(session, header.commit_id), refusal)

    async def once_durable(self, applied: Applied, clock: int) -> Applied:
        """Return `applied` once `clock` is durable."""
        try:
            await self.journal.wait_durable(clock)
        except BaseException:
            if applied.reader is not None:
                applied.reader.close()
            raise
        return applied

    def give_back(self, hold: BufferLease) -> None:
        """Release an incomplete upload's buffer."""
        self._staging.release(hold)

    def received(self, hold: BufferLease) -> None:
        """Record a valid upload."""
        self._staging.received(hold)

    def on_thread(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run `work`, which reads or writes a delta, on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._copy_threads, work)


class StagedCommit:
    """A commit with its staging buffer. As a context it releases the buffer, unless the commit was enqueued."""

    def __init__(self, commit_service: CommitService, header: Header, hold: BufferLease, piece: Piece) -> None:
        self._commit_service = commit_service
        self.header = header
        self.hold = hold
        self._piece = piece
        self._buffer = _buffer_of(hold)
        self._working: asyncio.Future[Any] | None = None  # a thread, on the buffer
        wire_type = WireType.FLOAT32 if header.wire_type is WireType.SHARED_MEMORY else header.wire_type
        self.payload = commit_service.format(wire_type, header.buffers)
        self.sink = hold.sink = self._buffer.sink(self.payload)
        self.is_rest_finite = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold.complete:
            return
        if self._working is not None and not self._working.done():
            # A thread still writes to the buffer, so it is released when the thread has ended.
            self._working.add_done_callback(self._work_ended)
        else:
            self._commit_service.give_back(self.hold)

    def _work_ended(self, working: "asyncio.Future[Any]") -> None:
        working.exception()  # mark it retrieved
        self._commit_service.give_back(self.hold)

    @property
    def rest(self) -> memoryview:
        """The bytes of the BUFFERs that this commit brought, in layout order."""
        return self._buffer.rest[: self.payload.rest_bytes]

    async def complete(self, crc32c: int) -> Applied:
        """Check the footer's checksum, multiply by the header's scale, then `_apply`."""
        self.sink.finish(crc32c)
        self.is_rest_finite = self.sink.is_rest_finite
        if self.header.checksum not in (None, crc32c):
            raise ChecksumError(
                f"CRC32C {crc32c:#010x} of the received bytes and the footer differs from the header's payload_crc32c "
                f"{self.header.checksum:#010x}: send the same in both"
            )
        if self.header.scale is not None:
            await self._work(partial(self.sink.multiply, self.header.scale))
        return await self._apply(crc32c)

    async def complete_shared(self) -> Applied:
        """Check and copy the delta, which its worker may still write; then `_apply`.

        Raises gem_core's value and checksum errors.
        """
        found = await self._work(partial(self._copy, _region_of(self.hold.session, self.header)))
        if self.header.checksum not in (None, found):
            raise ChecksumError(
                f"word sum {found:#010x} of what lies in shared memory differs from the header's "
                f"{self.header.checksum:#010x}: it changed after it was summed up; send it again"
            )
        return await self._apply(found)

    async def _work(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which writes to the buffer; of a large model on a thread."""
        if self.hold.session.join_info.layout.parameter_count < COPY_ELSEWHERE_ELEMENTS:
            return work()
        working = self._working = self._commit_service.on_thread(work)
        return await asyncio.shield(working)

    def _copy(self, region: DeltaRegion) -> int:
        payload, buffer, rest = self.payload, self._buffer, self.rest
        total = checked_copy(region.parameters, buffer.parameters, payload.layout, self.header.scale)
        if not rest:
            return total % (1 << 32)
        rest[:] = region.rest[: payload.rest_bytes]
        self.is_rest_finite = check_rest(payload, payload.parameter_bytes, np.frombuffer(rest, np.uint8))
        return (total + word_sum(rest, payload.layout.parameter_count)) % (1 << 32)

    async def _apply(self, checksum: int) -> Applied:
        commit_service = self._commit_service
        delta_norm = sampled_norm(self._buffer.parameters) if commit_service.measures_norms else None
        commit_service.received(self.hold)
        await commit_service.ordering.wait_complete(self._piece)
        while not commit_service.journal.reserve():
            await commit_service.journal.make_room()
        try:
            request = commit_service.enqueue(self, checksum, delta_norm)
        except BaseException:
            commit_service.journal.release()
            raise
        applied = await request.done
        return await commit_service.once_durable(applied, applied.verdict.version.clock)


def _buffer_of(hold: BufferLease) -> StagingBuffer:
    if hold.buffer is None:
        raise AssertionError("a commit holds no buffer")
    return hold.buffer


def _region_of(session: Session, header: Header) -> DeltaRegion:
    region = session.regions.delta if session.regions is not None else None
    if region is None or header.handle is None or not region.holds(header.handle):
        raise _no_such_region()
    return region


def _no_such_region() -> RefusedError:
    return RefusedError(
        Reason.NO_SHARED_MEMORY,
        "the handle names no region that this session has (a connection to the socket gives one), or another size than "
        "the header: send this commit as chunks",
    )
