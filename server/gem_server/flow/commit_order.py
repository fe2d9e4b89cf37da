"""When uploads may start, and when complete ones enter the queue; `shards` implements it for several servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from gem_server.errors import Reason, RefusedError
from gem_server.flow.requests import CommitRequest, InitializeRequest
from gem_server.state.sessions import Session
from gem_server.version import Version


class Piece(NamedTuple):
    """A session's commit on one shard; `commit_id` is the same on all."""

    session: Session
    commit_id: int


class CommitOrder:
    """One server with the whole model: at once."""

    async def wait_expected(self, piece: Piece) -> None:
        """Wait until the upload may start. Raises what the primary refused."""

    def upload_starts(self, piece: Piece) -> None:
        """A staging buffer is granted."""

    async def wait_complete(self, piece: Piece) -> None:
        """Wait until each other shard holds its piece."""

    def refused(self, piece: Piece, refusal: RefusedError) -> None:
        """The commit was refused here."""

    def holds_back(self, request: CommitRequest | InitializeRequest) -> bool:
        """Keep a complete upload until the primary orders it; False: enqueue it now."""
        return False

    @property
    def is_initialize_awaited(self) -> bool:
        """Whether a session waits to upload the first parameters."""
        return False

    @asynccontextmanager
    async def initializing(self, session: Session) -> AsyncIterator[None]:
        """Wait until the session may upload the first parameters; a context for the upload."""
        yield

    async def wait_initialized(self, session: Session) -> None:
        """Wait until each other shard holds its first parameters."""

    async def wait_snapshot(self, session: Session, version: Version | None) -> bool:
        """Wait for a snapshot that the primary orders; False: the caller refreshes it."""
        return False

    async def wait_kept(self, clock: int) -> None:
        """Wait until theta of this clock is kept for pulls without a session. Raises MALFORMED, STARTING."""
        raise RefusedError(Reason.MALFORMED, "clock is for shards other than the primary: leave it out")

    async def wait_joined(self, session_id: bytes) -> Session | None:
        """Wait for a session that the primary admits; None: the caller admits it. Raises UNKNOWN_SESSION."""
        return None
