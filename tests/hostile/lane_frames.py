"""The lane's frames, written from its specification alone; and a connection that may send any of them wrongly."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Mapping

from gemps.lane import FROM_WORKER, Kind
from gemps.v1 import commit_pb2

from tests.hostile.attacks import Scene, connect_tcp
from tests.hostile.sessions import Session

MAX_HELLO_BYTES = 4096
MAX_FIRST_MESSAGE_BYTES = 80 * 1024
MAX_MESSAGE_BYTES = 2 * 1024 * 1024 + 64 * 1024
HELLO_SECONDS = 5.0


# The specification's table, of frames from the worker.
SPECIFIED = {
    "HELLO": {"HELLO"},
    "IDLE": {"MESSAGE", "PING", "CANCEL"},
    "COMMITTING": {"MESSAGE", "CANCEL"},
    "REPLYING": {"CANCEL", "MESSAGE"},
    "CLOSED": set[str](),
}
STATES = tuple(SPECIFIED)


def legal() -> Mapping[str, set[str]]:
    """Which kinds a worker may send in which state."""
    return {state.name: {Kind(kind).name for kind in kinds} for state, kinds in FROM_WORKER.items()}


def frame(kind: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack("<IB", len(payload) if length is None else length, kind) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value % 128 | 128)
        value //= 128
    return bytes([*encoded, value])


def hello(
    session_id: bytes, incarnation: int, token: str = "", *, magic: bytes = b"gemps-lane", version: int = 1
) -> bytes:
    """The frame of a LaneHello."""
    authorization = f"Bearer {token}".encode() if token else b""
    texts = {1: magic, 4: session_id, 5: authorization}
    numbers = {2: version, 3: incarnation}
    parts = {number: _varint(number << 3 | 2) + _varint(len(text)) + text for number, text in texts.items() if text}
    parts |= {number: _varint(number << 3) + _varint(value) for number, value in numbers.items() if value}
    return frame(Kind.HELLO, b"".join(parts[number] for number in sorted(parts)))


def connect_plain(scene: Scene) -> socket.socket:
    """TCP to the lane's port, whatever it speaks."""
    return connect_tcp(scene, scene.target.lane_port)


def connect(scene: Scene) -> socket.socket:
    """A connection as a worker has it: with TLS where the server has that."""
    connection = connect_plain(scene)
    if not scene.target.ca_file:
        return connection
    context = ssl.create_default_context(cafile=scene.target.ca_file)
    try:
        return context.wrap_socket(connection, server_hostname="127.0.0.1")
    except BaseException:
        connection.close()
        raise


class Lane:
    """A connection of a session, blocking."""

    def __init__(self, scene: Scene, session: Session | None = None) -> None:
        self._scene = scene
        self.session = session
        self.socket = connect(scene)
        self.socket.settimeout(10.0)
        scene.facts["connections"] += 1

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, content: bytes) -> None:
        """Send; a connection that the server has closed says so when it is read."""
        with contextlib.suppress(OSError):
            self.socket.sendall(content)

    def receive(self) -> tuple[int, bytes]:
        """The next frame; (0, b"") when the connection is closed."""
        try:
            length, kind = struct.unpack("<IB", self._exactly(5))
            return kind, self._exactly(length)
        except (ConnectionError, EOFError, ssl.SSLError):
            return 0, b""

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def own_hello(self) -> bytes:
        assert self.session is not None
        return hello(self.session.session_id, self._scene.target.incarnation, self._scene.target.token)

    def begin(self) -> "Lane":
        """HELLO and WELCOME; in IDLE then."""
        self.send(self.own_hello())
        kind, content = self.receive()
        assert kind == Kind.WELCOME, (kind, content)
        return self

    def proceed(self) -> None:
        """A commit's header, and the server's word to go on; in COMMITTING then."""
        assert self.session is not None
        self.send(frame(Kind.MESSAGE, self.session.commit().opening().SerializeToString()))
        kind, content = self.receive()
        assert kind == Kind.MESSAGE, (kind, content)
        assert commit_pb2.CommitResponse.FromString(content).HasField("proceed")

    def commit(self) -> None:
        """A commit that travels whole, and its reply; in IDLE again."""
        assert self.session is not None
        self.send(frame(Kind.MESSAGE, self.session.commit().whole().SerializeToString()))
        while True:
            kind, content = self.receive()
            assert kind == Kind.MESSAGE, (kind, content)
            if self.session.take(commit_pb2.CommitResponse.FromString(content)):
                return

    def is_closed(self, seconds: float) -> bool:
        """Whether the server closes within so many seconds; what it says before that is passed over."""
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self.socket.settimeout(left)
                if not self.socket.recv(1 << 16):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False
