"""What an attack is, and what most of them are made of: floods, connections that are held, storms of connections."""

import contextlib
import errno
import itertools
import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_COMPLAINTS = 5
# Of a flood: what one connection is given in one go.
BLOCK_BYTES = 64 * 1024
# A reset instead of an orderly end, so that no port stays in TIME_WAIT: there are 28 000 of them.
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Target:
    """The server, as an attacker knows it.

    `session` is the honest worker's session id in hexadecimal, stolen. `number` counts the processes of one attack.
    """

    address: str
    parameters: int
    incarnation: int
    session: str
    commit_port: int = 0
    lane_port: int = 0
    dashboard: str = ""
    shared_memory_socket: str = ""
    token: str = ""
    ca_file: str = ""
    number: int = 0

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def dashboard_port(self) -> int:
        return int(self.dashboard.rstrip("/").rpartition(":")[2])


class Scene:
    """One attacker's view of its attack: whom it attacks, until when, and what it has seen."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self.facts: Counter[str] = Counter()
        self.complaints: list[str] = []
        self._seconds = seconds
        self._end = 0.0
        self.processor_seconds = 0.0

    def begin(self) -> None:
        """Preparations are over: say so, wait for the word, and let the time run."""
        print("ready", flush=True)
        assert sys.stdin.readline() == "go\n"
        self.processor_seconds = -time.process_time()
        self._end = time.monotonic() + self._seconds

    @property
    def running(self) -> bool:
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds until the attack is over."""
        return self._end - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """At most until the attack is over."""
        time.sleep(max(0.0, min(seconds, self.left)))

    def complain(self, what: str) -> None:
        """The server did something that it must not do."""
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(what)

    def end(self) -> str:
        """What the process says last."""
        seconds = self.processor_seconds + time.process_time()
        return json.dumps({"facts": self.facts, "complaints": self.complaints, "processor_seconds": seconds})


Connect = Callable[[Scene], socket.socket]


@dataclass(frozen=True)
class Attack:
    """One attack.

    needs: what the server must be started with: "tokens", "tls", "shared memory", "dashboard".
    processes: that attack side by side, in the full form; one in the short one.
    seconds, short_seconds: how long it takes in the full form and in the short one.
    quick: whether it belongs to the short form.
    least_ratio: of the honest worker's commits/s, what must remain; less than half where one stranger's processor time
        alone decides.
    peak_mib: memory that it may take while it lasts.
    """

    name: str
    target: str
    run: Callable[[Scene], None]
    needs: frozenset[str] = frozenset()
    processes: int = 1
    seconds: float = 8.0
    short_seconds: float = 0.5
    quick: bool = True
    least_ratio: float = 0.5
    peak_mib: float = 512.0


@dataclass
class Attacks:
    """Those of one target, by name."""

    target: str
    needs: frozenset[str] = frozenset()
    by_name: dict[str, Attack] = field(default_factory=dict)

    def add(self, name: str, *needs: str, **options: float) -> Callable[[Callable[[Scene], None]], None]:
        """A decorator: this function is the attack of this name."""

        def take(run: Callable[[Scene], None]) -> None:
            assert name not in self.by_name, name
            self.by_name[name] = Attack(name, self.target, run, self.needs | set(needs), **options)  # type: ignore[arg-type]

        return take


# -- connections -------------------------------------------------------------------------------------------------------


def connect_tcp(scene: Scene, port: int, *, receive_buffer: int = 0) -> socket.socket:
    """A connection that is reset when it is closed."""
    connection = socket.socket()
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(5.0)
        connection.connect((scene.target.address.rpartition(":")[0], port))
    except BaseException:
        connection.close()
        raise
    return connection


def to_port(port: Callable[[Target], int], *, receive_buffer: int = 0) -> Connect:
    """Connects to this port of the target."""
    return lambda scene: connect_tcp(scene, port(scene.target), receive_buffer=receive_buffer)


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the peer closes within so many seconds; what it says before that is passed over."""
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(1 << 16):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


# -- what attacks are made of ------------------------------------------------------------------------------------------


@dataclass
class _Stream:
    """What is still to be sent on one connection."""

    blocks: Iterator[bytes]
    rest: memoryview = field(default_factory=lambda: memoryview(b""))


def flood(
    scene: Scene, connect: Connect, blocks: Callable[[], Iterator[bytes]], *, reads: bool = True, connections: int = 1
) -> None:
    """Send without end over some connections; one that the server closes is made anew, at most 200 times a second.

    `blocks` has what one connection sends; when it ends the connection is closed and made anew; after an empty
    block it stays open and idle. Facts: `bytes` that the server took, `connections` that were made, and `closed` ones,
    by the server.
    """
    selector = selectors.DefaultSelector()
    unread: list[socket.socket] = []
    missing = connections
    again = 0.0
    events = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
    while scene.running:
        if missing and time.monotonic() >= again:
            again = time.monotonic() + 0.005
            with contextlib.suppress(OSError):
                connection = connect(scene)
                connection.setblocking(False)
                selector.register(connection, events, _Stream(blocks()))
                scene.facts["connections"] += 1
                missing -= 1
        for key, mask in selector.select(min(max(scene.left, 0), 0.005 if missing else 0.1)):
            connection, stream = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            try:
                if mask & selectors.EVENT_READ and not connection.recv(1 << 18):
                    raise ConnectionResetError
                if mask & selectors.EVENT_WRITE:
                    if not stream.rest:
                        stream.rest = memoryview(next(stream.blocks))
                        if not stream.rest:
                            if reads:
                                selector.modify(connection, selectors.EVENT_READ, stream)
                            else:
                                selector.unregister(connection)
                                unread.append(connection)
                            continue
                    sent = connection.send(stream.rest)
                    stream.rest = stream.rest[sent:]
                    scene.facts["bytes"] += sent
                continue
            except BlockingIOError:
                continue
            except StopIteration:
                pass
            except OSError:
                scene.facts["closed"] += 1
            selector.unregister(connection)
            connection.close()
            missing += 1
    for connection in [*(key.fileobj for key in selector.get_map().values()), *unread]:
        connection.close()  # type: ignore[union-attr]
    selector.close()


def hold(
    scene: Scene,
    connect: Connect,
    first: bytes | Callable[[int], bytes],
    count: int,
    *,
    drip: bytes = b"",
    drip_seconds: float = 1.0,
    closed_after: float | None = None,
) -> None:
    """Make so many connections, send `first` on each (or what it says for its number), and then next to nothing.

    `drip`: bytes that follow, one every `drip_seconds`, again and again. `closed_after`: seconds after which the server
    must have closed every one of them, if the attack lasts as long. Facts: `connections`, `refused`, `closed`, `open`
    in the end, `most_open` at once, and the longest life of one that was closed, in milliseconds.
    """
    selector = selectors.DefaultSelector()
    drops = itertools.cycle(drip)
    next_drip = time.monotonic() + drip_seconds
    longest = 0.0

    def read(timeout: float) -> None:
        nonlocal longest
        for key, _ in selector.select(timeout):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                if connection.recv(1 << 16):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            longest = max(longest, time.monotonic() - key.data)
            scene.facts["closed"] += 1
            selector.unregister(connection)
            connection.close()

    for number in range(count):
        if not scene.running:
            break
        try:
            connection = connect(scene)
            connection.setblocking(False)
            if content := first if isinstance(first, bytes) else first(number):
                connection.send(content)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.EADDRNOTAVAIL):  # this machine's limit, not the server's
                raise
            scene.facts["refused"] += 1
            continue
        selector.register(connection, selectors.EVENT_READ, time.monotonic())
        scene.facts["connections"] += 1
        scene.facts["most_open"] = max(scene.facts["most_open"], len(selector.get_map()))
        read(0)
    while scene.running and selector.get_map():  # when all are closed, nothing is left to do
        read(min(scene.left, 0.1))
        if drip and time.monotonic() >= next_drip:
            next_drip = time.monotonic() + drip_seconds
            drop = bytes([next(drops)])
            for key in list(selector.get_map().values()):
                with contextlib.suppress(OSError):
                    key.fileobj.send(drop)  # type: ignore[union-attr]
    now = time.monotonic()
    left = list(selector.get_map().values())
    scene.facts["open"] += len(left)
    scene.facts["longest_ms"] = round(longest * 1000)
    for key in left:
        if closed_after is not None and now - key.data > closed_after:
            scene.complain(f"a connection is open after {now - key.data:.1f} s, and not closed after {closed_after:g}")
    for key in left:
        key.fileobj.close()  # type: ignore[union-attr]
    selector.close()


def storm(scene: Scene, connect: Connect, first: bytes = b"") -> None:
    """Make a connection, send `first`, reset it, and so on, as fast as it goes."""
    while scene.running:
        try:
            with connect(scene) as connection:
                scene.facts["connections"] += 1
                if first:
                    connection.send(first)
        except OSError:
            scene.facts["refused"] += 1


def cases(attacks: Attacks, full: bool) -> list[Attack]:
    """Those of the full form, or of the short one."""
    return [one for one in attacks.by_name.values() if one.quick or full]


def all_attacks() -> Mapping[str, Attacks]:
    """By target; imported here, because they import this file."""
    from tests.hostile import dashboard, grpc_port, lane, shared_memory

    modules = (lane, grpc_port, shared_memory, dashboard)
    return {module.ATTACKS.target: module.ATTACKS for module in modules}


def main(told: str) -> None:
    """The process of one attacker; its argument says who attacks whom."""
    read = json.loads(told)
    attack = all_attacks()[read["of"]].by_name[read["attack"]]
    scene = Scene(Target(**read["target"]), read["seconds"])
    attack.run(scene)
    print(scene.end(), flush=True)


if __name__ == "__main__":
    # By its own name, since the other files import this one by it.
    from tests.hostile.attacks import main as run

    run(sys.argv[1])
