"""Passes shared memory (shared_memory.proto)."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemps.limits import SHARED_MEMORY_REQUEST_BYTES
from gemps.v1 import shared_memory_pb2

from gem_core import WireType
from gem_core.shards import Shard
from gem_server.errors import Reason, RefusedError, StartupError
from gem_server.peer_log import PeerLog
from gem_server.service import messages
from gem_server.service.accept import accept_all
from gem_server.service.call_context import ReadinessGate
from gem_server.settings import MAX_SOCKET_PATH_BYTES
from gem_server.shared_memory.regions import PAYLOAD_OFFSET, Region, SessionRegions
from gem_server.state.sessions import Session, Sessions

REQUEST_SECONDS = 10.0
# Reconnects and silent clients.
SPARE_CONNECTIONS = 64
# Against storms.
ACCEPT_PAUSE_SECONDS = 0.001


class SharedMemorySocket:
    """Hands out regions, on one event loop.

    A connection ends with its session or its newer connection; `on_release` follows.
    """

    def __init__(
        self,
        path: Path,
        sessions: Sessions,
        gate: ReadinessGate,
        clock: Callable[[], float],
        on_release: Callable[[], None],
        shard: Shard,
        peer_log: PeerLog,
    ) -> None:
        self.path = path
        self._shard = shard
        self._peer_log = peer_log
        self._on_release = on_release
        self._sessions = sessions
        self._gate = gate
        self._clock = clock
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[None], Session | None] = {}
        sessions.on_end.append(self._end_of_session)

    def open(self) -> None:
        """Listen. Raises StartupError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _bind(listening, self.path)
            # The session id authenticates; folder permissions restrict access.
            self.path.chmod(0o666)
            listening.listen(socket.SOMAXCONN)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        self._listening = listening
        accepting = accept_all(
            listening, self._has_room, self._accept, "shared memory", self._peer_log, ACCEPT_PAUSE_SECONDS
        )
        self._accepting = asyncio.create_task(accepting)

    async def close(self) -> None:
        """Close everything and remove the socket. Idempotent."""
        if self._listening is None:
            return
        tasks = [*self._connections, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()
        self._listening = None
        self.path.unlink(missing_ok=True)

    def _has_room(self) -> bool:
        return len(self._connections) < self._sessions.max_sessions + SPARE_CONNECTIONS

    async def _accept(self, connection: socket.socket) -> None:
        task = asyncio.create_task(self._serve(connection))
        self._connections[task] = None
        task.add_done_callback(self._connections.pop)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    raw = await loop.sock_recv(connection, SHARED_MEMORY_REQUEST_BYTES)
                if not raw:
                    return
                session, regions = self._regions_for(raw)
            except TimeoutError:
                return
            except RefusedError as refusal:
                with suppress(OSError):
                    connection.send(_refusal(refusal))
                return
            except OSError as error:
                if error.errno not in (errno.ECONNRESET, errno.EPIPE):
                    self._peer_log.refuse(
                        "shared memory",
                        f"no shared memory for a worker, which uses the stream: {error.strerror or error}",
                    )
                return
            self._supersede_older_connection(session)
            delta = regions.new_delta()
            snapshot = regions.snapshot
            try:
                descriptors = [delta.file.descriptor, snapshot.file.descriptor]
                socket.send_fds(connection, [_answer(delta, snapshot)], descriptors)
                if delta.number == snapshot.number + 1:  # first request
                    name = session.worker.name
                    self._peer_log.log("shares-memory", name, f"worker {name} shares memory", worker=name)
                await loop.sock_recv(connection, 1)  # EOF; data ends it, too
            except OSError:
                pass
            finally:
                regions.close_delta(delta)
                # A cancelled call's frame would keep the regions alive.
                del session, regions, delta, snapshot
                self._on_release()

    def _regions_for(self, raw: bytes) -> tuple[Session, SessionRegions]:
        self._gate.check_not_draining()
        request = messages.parse(shared_memory_pb2.SharedMemoryRequest, raw, SHARED_MEMORY_REQUEST_BYTES)
        if request.shard != self._shard.index:
            raise RefusedError(Reason.UNKNOWN_SESSION, f"this is shard {self._shard}, not {request.shard}")
        session = self._sessions.get(request.session_id, self._clock())
        self._sessions.check_layout(session)
        join_info = session.join_info
        if (join_info.delta_wire_type, join_info.parameter_wire_type) != (WireType.FLOAT32, WireType.FLOAT32):
            raise RefusedError(
                Reason.WIRE_TYPE, "shared memory holds FLOAT32: join with that for deltas and parameters"
            )
        if session.regions is None:
            session.regions = SessionRegions(join_info.layout)
        return session, session.regions

    def _supersede_older_connection(self, session: Session) -> None:
        current = asyncio.current_task()
        for task, owner in self._connections.items():
            if owner is session:
                task.cancel()
        if current is not None:
            self._connections[current] = session

    def _end_of_session(self, session: Session) -> None:
        for task, owner in self._connections.items():
            if owner is session:
                task.cancel()
        session.regions = None


def _bind(listening: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise StartupError(
            f"--shared-memory-socket {path} has {len(os.fsencode(path))} bytes, and a socket's path at most "
            f"{MAX_SOCKET_PATH_BYTES}: choose a shorter one"
        )
    try:
        _remove_remains(path)
        listening.bind(str(path))
    except OSError as error:
        raise StartupError(
            f"--shared-memory-socket {path} cannot be made ({error.strerror}): name a file in a folder that exists and "
            "that this process may write to"
        ) from error


def _remove_remains(path: Path) -> None:
    """Remove a dead server's socket. Raises StartupError if in use."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"--shared-memory-socket {path} is there already, and is no socket: choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise StartupError(
                f"--shared-memory-socket {path} is there already ({error.strerror}): choose another path"
            ) from error
    raise StartupError(f"another server listens at --shared-memory-socket {path}: stop it, or choose another path")


def _answer(delta: Region, snapshot: Region) -> bytes:
    response = shared_memory_pb2.SharedMemoryResponse(delta=_described(delta), snapshots=[_described(snapshot)])
    return response.SerializeToString()


def _described(region: Region) -> shared_memory_pb2.SharedMemoryRegion:
    return shared_memory_pb2.SharedMemoryRegion(
        region=region.number,
        size_bytes=region.file.size,
        payload_offset=PAYLOAD_OFFSET,
        payload_bytes=region.payload_bytes,
    )


def _refusal(refusal: RefusedError) -> bytes:
    response = shared_memory_pb2.SharedMemoryResponse(
        refused=f"ERROR_REASON_{refusal.reason.name}", message=refusal.message[:1024]
    )
    return response.SerializeToString()
