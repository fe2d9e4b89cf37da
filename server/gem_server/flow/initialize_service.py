"""The first parameters, which are those of the first complete and valid upload."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from gem_core import WireType
from gem_core.aligned import aligned_empty
from gem_core.chunking.assemble import DecodingAssembler
from gem_core.payload import PayloadFormat
from gem_core.wire_types import FINITE
from gem_server.errors import Reason, RefusedError
from gem_server.flow.applier import Applier
from gem_server.flow.calls import Call
from gem_server.flow.commit_order import CommitOrder
from gem_server.flow.requests import InitializeRequest
from gem_server.flow.staging_pool import BufferLease, Purpose, StagingPool
from gem_server.state.central_variable import CentralVariable
from gem_server.state.sessions import Session, Sessions


class AlreadyInitializedError(Exception):
    """There are parameters already. The caller gets an answer and no error."""


class InitializeService:
    """Handles all Initialize uploads."""

    def __init__(
        self,
        *,
        central: CentralVariable,
        sessions: Sessions,
        staging: StagingPool,
        applier: Applier,
        stored: Callable[[], Awaitable[None]] | None,
        ordering: CommitOrder,
    ) -> None:
        self._central = central
        self._sessions = sessions
        self._staging = staging
        self._applier = applier
        self._stored = stored
        self._ordering = ordering

    def check_open(self, session: Session) -> None:
        """Raise AlreadyInitializedError or LAYOUT_MISMATCH if there are parameters."""
        session.check_alive()
        if self._central.layout is not None:
            self._sessions.check_layout(session)
            raise AlreadyInitializedError

    def exclusively(self, session: Session) -> AbstractAsyncContextManager[None]:
        """Context of an upload, in which no other upload begins, so that all shards get one worker's parameters."""
        return self._ordering.initializing(session)

    async def stage(self, session: Session, call: Call, byte_count: int, adapter: bytes) -> "Upload":
        """Wait for a place in the pool. The upload's memory becomes the central variable."""
        self.check_open(session)
        payload = PayloadFormat(session.join_info.layout, WireType.FLOAT32)
        if byte_count != payload.byte_count:
            raise RefusedError(
                Reason.SIZE_MISMATCH,
                f"byte_count is {byte_count}; first parameters of this layout must have {payload.byte_count} bytes "
                "(float32, then buffers; FROZEN tensors are not sent)",
            )
        older, session.initialize_call = session.initialize_call, call
        if older is not None:
            older.end(
                RefusedError(Reason.NEWER_CALL, "a newer Initialize of this session took over: wait for that one")
            )
        hold = await self._staging.reserve(session, call, Purpose.INITIALIZE)
        try:
            self.check_open(session)
            return Upload(self, session, hold, payload, adapter)
        except BaseException:
            self._staging.release(hold)
            raise

    async def submit(self, upload: "Upload") -> None:
        """Enqueue a complete upload. Raises AlreadyInitializedError."""
        request = InitializeRequest(upload.session, upload.parameters, bytes(upload.rest), upload.adapter)
        await self._ordering.wait_initialized(upload.session)
        if not self._ordering.holds_back(request):
            self._applier.submit(request)
        if not await request.done:
            self.check_open(upload.session)
        for session in self._sessions.live():
            if session is not upload.session and session.initialize_call is not None:
                session.initialize_call.end(AlreadyInitializedError())

    async def stored(self) -> None:
        """Wait until the parameters are on disk, if the run requires this. Raises STORAGE_FULL."""
        if self._stored is not None:
            await self._stored()

    def close(self, upload: "Upload") -> None:
        """Release the upload's place."""
        self._staging.release(upload.hold)


class Upload:
    """An upload of first parameters. As a context it releases the upload's place."""

    def __init__(
        self,
        initialize_service: InitializeService,
        session: Session,
        hold: BufferLease,
        payload: PayloadFormat,
        adapter: bytes,
    ) -> None:
        self._initialize_service = initialize_service
        self.session = session
        self.hold = hold
        self.payload = payload
        self.adapter = adapter
        self.parameters = aligned_empty(payload.layout.parameter_count)
        self.rest = memoryview(bytearray(payload.rest_bytes))
        self._assembler = hold.sink = DecodingAssembler(payload, self.parameters, self.rest, FINITE)

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, *_: object) -> None:
        self._initialize_service.close(self)

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Add a chunk. Raises gem_core's errors."""
        self._assembler.add(data)

    async def complete(self, crc32c: int) -> None:
        """Check the footer's checksum and submit. Raises as `submit`."""
        self._assembler.finish(crc32c)
        self.hold.received = True
        await self._initialize_service.submit(self)
