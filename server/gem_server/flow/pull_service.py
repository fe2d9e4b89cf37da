"""Pulls: of sessions, which may resume a transfer, and of readers without a session."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gem_core import WireType
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard
from gem_server.errors import Reason, RefusedError
from gem_server.flow.applier import Applier
from gem_server.flow.calls import Call
from gem_server.flow.commit_order import CommitOrder
from gem_server.flow.journal import Journal
from gem_server.flow.reader import Reader
from gem_server.flow.requests import PullRequest, SharedPullRequest, SnapshotRequest, Unchanged
from gem_server.state.central_variable import CentralVariable
from gem_server.state.sessions import Session, Sessions
from gem_server.version import Version

MAX_SHARED_READERS = 64
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed `PullRequest`."""

    known_version: Version | None
    resume_version: Version | None
    resume_offset: int
    wire_type: WireType
    clock: int


class PullService:
    """Makes a reader for each pull."""

    def __init__(
        self,
        *,
        central: CentralVariable,
        sessions: Sessions,
        applier: Applier,
        journal: Journal,
        stored: Callable[[], Awaitable[None]] | None,
        ordering: CommitOrder,
        shard: Shard,
    ) -> None:
        """`stored`: waits until the first parameters are on disk; None: they are not kept there."""
        self._central = central
        self._sessions = sessions
        self._applier = applier
        self._journal = journal
        self._stored = stored
        self._ordering = ordering
        self._shard = shard
        self._waiting_readers = 0
        self._formats: dict[WireType, PayloadFormat] = {}

    def format(self, wire_type: WireType) -> PayloadFormat:
        """Return the payload format of this wire type. Raises NOT_INITIALIZED."""
        if self._central.layout is None:
            raise RefusedError(Reason.NOT_INITIALIZED, "there are no parameters yet: Initialize first")
        known = self._formats.get(wire_type)
        if known is None:
            known = PayloadFormat(self._central.layout, wire_type)
            self._formats[wire_type] = known
        return known

    async def open(self, session: Session | None, call: Call, wanted: Wanted) -> Reader | Unchanged:
        """Wait for the pull's turn, and until its version is durable. The caller closes a Reader that is returned.

        It waits until the first parameters are on disk, because all training from them would be lost with the server.
        Raises STORAGE_FULL if there is no room for them.
        """
        if self._stored is not None and self._central.layout is not None:
            await self._stored()
        outcome = await self._open(session, call, wanted)
        try:
            await self._journal.wait_durable(outcome.version.clock)
        except BaseException:
            if isinstance(outcome, Reader):
                outcome.close()
            raise
        return outcome

    async def _open(self, session: Session | None, call: Call, wanted: Wanted) -> Reader | Unchanged:
        payload = self.format(wanted.wire_type)
        if wanted.resume_version is not None:
            return await self._resume(session, call, wanted, payload)
        if session is None:
            return await self._shared(call, wanted)
        self._sessions.check_layout(session)
        if await self._ordering.wait_snapshot(session, None):
            return await self._snapshot(session, call, None)
        session.queued_pulls += 1
        request = PullRequest(session, call, wanted.known_version)
        self._applier.submit(request)
        return await request.done

    async def _resume(self, session: Session | None, call: Call, wanted: Wanted, payload: PayloadFormat) -> Reader:
        if session is None:
            raise RefusedError(
                Reason.MALFORMED, "resume_version needs a session_id: without a session, pull from the start"
            )
        if wanted.known_version is not None:
            raise RefusedError(Reason.MALFORMED, "known_version and resume_version exclude each other: set one of them")
        if wanted.resume_offset > payload.byte_count:
            raise RefusedError(
                Reason.BAD_CHUNK,
                f"resume_offset {wanted.resume_offset} is beyond this payload of {payload.byte_count} bytes: resume "
                "where the transfer was torn",
            )
        await self._ordering.wait_snapshot(session, wanted.resume_version)
        return await self._snapshot(session, call, wanted.resume_version)

    async def _snapshot(self, session: Session, call: Call, version: Version | None) -> Reader:
        request = SnapshotRequest(session, call, version)
        self._applier.submit(request)
        return await request.done

    async def _shared(self, call: Call, wanted: Wanted) -> Reader | Unchanged:
        if self._shard.is_secondary and not wanted.clock:
            raise RefusedError(
                Reason.MALFORMED, f"this is shard {self._shard}: pull from the primary, then here, with its clock"
            )
        shared = self._applier.shared
        if self._waiting_readers + shared.readers >= MAX_SHARED_READERS:
            shared.end_stalled()
        if self._waiting_readers + shared.readers >= MAX_SHARED_READERS:
            raise RefusedError(
                Reason.TOO_MANY,
                f"{MAX_SHARED_READERS} readers without a session are there already: pull again later",
                retry_after=RETRY_SECONDS,
            )
        self._waiting_readers += 1
        try:
            kept = None
            if wanted.clock:
                await self._ordering.wait_kept(wanted.clock)
                kept = self._central.version._replace(clock=wanted.clock)
            request = SharedPullRequest(None, call, wanted.known_version, kept)
            self._applier.submit(request)
            return await request.done
        finally:
            self._waiting_readers -= 1
