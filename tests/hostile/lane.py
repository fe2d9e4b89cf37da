"""Attacks at the lane: strangers who never say HELLO, and sessions that do not keep to its table."""

import itertools
import random
import struct
from collections.abc import Callable, Iterator

from gemps.v1 import commit_pb2

from tests.hostile import http2_frames as http2
from tests.hostile.attacks import BLOCK_BYTES, Attacks, Scene, flood, hold, storm, to_port
from tests.hostile.lane_frames import (
    HELLO_SECONDS,
    MAX_FIRST_MESSAGE_BYTES,
    MAX_HELLO_BYTES,
    MAX_MESSAGE_BYTES,
    STATES,
    Kind,
    Lane,
    connect,
    connect_plain,
    frame,
    hello,
    legal,
)
from tests.hostile.sessions import Session, join, stub_of
from tests.hostile.tls_frames import CLIENT_HELLO

ATTACKS = Attacks("lane")

# What a busy server may be late; and for how long a connection that must be closed at once is watched.
LATE = 2.0
AT_ONCE = 5.0
STRANGERS = 1200
# A stranger without a valid HELLO costs at most this, for at most HELLO_SECONDS.
STRANGER_KIB = 16
STRANGERS_MIB = STRANGERS * STRANGER_KIB / 1024
MUTATED_FRAMES = 100_000
MOST = 0xFFFF_FFFF


# -- strangers ---------------------------------------------------------------------------------------------------------


def strangers_hello(scene: Scene) -> bytes:
    """A well-formed HELLO of a session that is not there."""
    return hello(b"stranger" * 2, scene.target.incarnation)


@ATTACKS.add("partial first frames on 1200 connections", peak_mib=STRANGERS_MIB, short_seconds=20.0)
def partial_first_frames(scene: Scene) -> None:
    """Part of a frame's head, a head alone, or half of what it announces."""
    whole = strangers_hello(scene)
    largest = frame(Kind.HELLO, bytes(MAX_HELLO_BYTES - 1), length=MAX_HELLO_BYTES)
    firsts = (whole[:3], whole[:5], whole[:-1], largest)
    scene.begin()
    hold(
        scene, connect_plain, lambda number: firsts[number % len(firsts)], STRANGERS, closed_after=HELLO_SECONDS + LATE
    )


@ATTACKS.add("1200 connections that say nothing", quick=False, peak_mib=STRANGERS_MIB)
def silent(scene: Scene) -> None:
    scene.begin()
    hold(scene, connect_plain, b"", STRANGERS, closed_after=HELLO_SECONDS + LATE)


@ATTACKS.add("300 connections, one byte a second", quick=False, peak_mib=16)
def slow_senders(scene: Scene) -> None:
    scene.begin()
    whole = strangers_hello(scene)
    hold(scene, connect_plain, whole[:1], 300, drip=whole[1:], closed_after=HELLO_SECONDS + LATE)


@ATTACKS.add("storm of connections", processes=4, seconds=10.0, least_ratio=0.2, peak_mib=32)
def connection_storm(scene: Scene) -> None:
    scene.begin()
    storm(scene, connect_plain)


@ATTACKS.add(
    "storm of HELLOs of unknown sessions", quick=False, processes=4, seconds=10.0, least_ratio=0.2, peak_mib=32
)
def hello_storm(scene: Scene) -> None:
    first = strangers_hello(scene)
    scene.begin()
    storm(scene, connect_plain, first)


def refused_firsts(*firsts: bytes, then: bytes = b"") -> Callable[[Scene], None]:
    """Each of these, in turn, on a connection of its own; it must be closed at once. `then`: sent after it, at once."""

    def run(scene: Scene) -> None:
        scene.begin()
        for first in itertools.cycle(firsts):
            if not scene.running:
                return
            try:
                with Lane(scene) as lane:
                    lane.send(first + then)
                    if not lane.is_closed(AT_ONCE):
                        scene.complain(f"not closed after {first[:24]!r}")
                    scene.facts["frames"] += 1
            except OSError:
                scene.facts["refused"] += 1

    return run


ATTACKS.add("HELLO of 4 GiB", least_ratio=0.2, peak_mib=16)(
    refused_firsts(frame(Kind.HELLO, length=MOST), then=bytes(60_000))
)
ATTACKS.add("first frames of 0 and 2^32-1 bytes, of every kind", quick=False, least_ratio=0.2, peak_mib=16)(
    refused_firsts(*(frame(kind, length=length) for kind in range(256) for length in (0, MOST)))
)
ATTACKS.add("HELLOs that are wrong", least_ratio=0.2, peak_mib=16)(
    refused_firsts(
        hello(b"s" * 16, 1, magic=b"gemps-lame"),
        hello(b"s" * 16, 1, version=0),
        hello(b"s" * 16, 1, version=99),
        hello(b"", 1),
        hello(b"s" * 3000, 1),
        hello(b"s" * 16, 1, "t" * 3000),
        frame(Kind.HELLO, b"\xff" * MAX_HELLO_BYTES),
        frame(Kind.HELLO, bytes(MAX_HELLO_BYTES)),
        frame(Kind.HELLO, b"\x22\xff\xff\xff\xff\x0f"),
    )
)
ATTACKS.add("TLS, HTTP/1 and HTTP/2 to a lane without TLS", quick=False, least_ratio=0.2, peak_mib=16)(
    refused_firsts(CLIENT_HELLO, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", http2.opening())
)


@ATTACKS.add("plain bytes to a lane with TLS", "tls", quick=False, least_ratio=0.2, peak_mib=32)
def plain_to_tls(scene: Scene) -> None:
    first = strangers_hello(scene)
    scene.begin()
    flood(scene, connect_plain, lambda: itertools.repeat(first * 100), connections=16)


STOPPED = (b"", CLIENT_HELLO[:7], CLIENT_HELLO)


@ATTACKS.add("50 handshakes that stop", "tls", peak_mib=128)
def few_stopped_handshakes(scene: Scene) -> None:
    scene.begin()
    hold(scene, connect_plain, lambda number: STOPPED[number % len(STOPPED)], 50, closed_after=HELLO_SECONDS + LATE)


@ATTACKS.add("1200 handshakes that stop", "tls", quick=False, peak_mib=128)
def many_stopped_handshakes(scene: Scene) -> None:
    """The server accepts 50 a second, so most of them wait in the kernel's backlog until the attack is over."""
    scene.begin()
    hold(scene, connect_plain, lambda number: STOPPED[number % len(STOPPED)], STRANGERS)


@ATTACKS.add("300 handshakes and no HELLO", "tls", quick=False, peak_mib=64)
def tls_without_hello(scene: Scene) -> None:
    scene.begin()
    hold(scene, connect, b"", 300, closed_after=HELLO_SECONDS + LATE)


@ATTACKS.add(
    "storm of connections with TLS", "tls", processes=4, seconds=10.0, quick=False, least_ratio=0.2, peak_mib=64
)
def tls_storm(scene: Scene) -> None:
    scene.begin()
    storm(scene, connect)


@ATTACKS.add("stolen session id, without its token", "tokens", least_ratio=0.2, peak_mib=16)
def stolen_session(scene: Scene) -> None:
    """The honest worker's own session, incarnation and all."""
    stolen = bytes.fromhex(scene.target.session)
    tokens = itertools.cycle(("", "wrong-token-of-a-stranger", scene.target.token[:-1]))
    scene.begin()
    while scene.running:
        expect_refusal(scene, hello(stolen, scene.target.incarnation, next(tokens)), "a stolen session")


def expect_refusal(scene: Scene, first: bytes, what: str) -> None:
    """This HELLO must be answered with END, or not at all."""
    try:
        with Lane(scene) as lane:
            lane.send(first)
            kind, _ = lane.receive()
            if kind not in (0, Kind.END):
                scene.complain(f"{what} was answered with {kind}")
            elif not lane.is_closed(AT_ONCE):
                scene.complain(f"{what}: not closed after END")
            scene.facts["frames"] += 1
    except OSError:
        scene.facts["refused"] += 1


# -- sessions that do not keep to the table ----------------------------------------------------------------------------


@ATTACKS.add("wrong incarnation, and sessions that have left", quick=False, least_ratio=0.2, peak_mib=16)
def wrong_hellos(scene: Scene) -> None:
    session, gone = join(scene, 2)
    with stub_of(scene.target) as stub:
        stub.Leave(gone.leave_request(), metadata=gone.metadata, timeout=30)
    incarnation = scene.target.incarnation
    wrong = {
        "the next incarnation": hello(session.session_id, incarnation + 1, scene.target.token),
        "no incarnation": hello(session.session_id, 0, scene.target.token),
        "a session that has left": hello(gone.session_id, incarnation, scene.target.token),
    }
    scene.begin()
    for what, first in itertools.cycle(wrong.items()):
        if not scene.running:
            return
        expect_refusal(scene, first, what)


@ATTACKS.add("replayed HELLOs", least_ratio=0.2, peak_mib=32)
def replayed_hellos(scene: Scene) -> None:
    """One session's HELLO, again and again: only the newest connection may stay."""
    (session,) = join(scene)
    scene.begin()
    lanes: list[Lane] = []
    while scene.running:
        lanes.append(Lane(scene, session).begin())
        if len(lanes) == 50:
            for lane in lanes[:-1]:
                if not lane.is_closed(AT_ONCE):
                    scene.complain("an older connection of the session stays open")
                lane.socket.close()
            lanes = lanes[-1:]
    for lane in lanes:
        lane.socket.close()


@ATTACKS.add("storm of one session's HELLOs", processes=4, seconds=10.0, quick=False, least_ratio=0.2, peak_mib=32)
def own_hello_storm(scene: Scene) -> None:
    """Each one replaces the connection before, which the attacker has reset by then."""
    (session,) = join(scene)
    first = hello(session.session_id, scene.target.incarnation, scene.target.token)
    scene.begin()
    storm(scene, connect_plain, first)


@ATTACKS.add("frames that do not wait for WELCOME", least_ratio=0.2, peak_mib=32)
def early_frames(scene: Scene) -> None:
    """HELLO and another frame in one segment: none is legal before WELCOME."""
    (session,) = join(scene)
    first = hello(session.session_id, scene.target.incarnation, scene.target.token)
    scene.begin()
    for kind in itertools.cycle(Kind):
        if not scene.running:
            return
        early = first if kind is Kind.HELLO else frame(kind, payload_of(kind, session))
        with Lane(scene, session) as lane:
            lane.send(first + early)
            if not lane.is_closed(AT_ONCE):
                scene.complain(f"{kind.name} together with HELLO: not closed")
            scene.facts["frames"] += 1


def payload_of(kind: Kind, session: Session) -> bytes:
    """What a frame of this kind has where it is legal."""
    contents = {
        Kind.MESSAGE: session.commit().opening().SerializeToString(),
        Kind.PING: b"12345678",
        Kind.PONG: b"12345678",
    }
    return contents.get(kind, b"")


def illegal_frames(scene: Scene, session: Session) -> Iterator[tuple[str, bytes]]:
    """(state, frame) of every kind that is not legal there, and of sizes that no legal kind has."""
    token, incarnation = scene.target.token, scene.target.incarnation
    for state in STATES[:-1]:
        for kind in Kind:
            if kind.name not in legal()[state]:
                first = hello(session.session_id, incarnation, token)
                yield state, first if kind is Kind.HELLO else frame(kind, payload_of(kind, session))
        for unknown in (0, 8, 255):
            yield state, frame(unknown, b"x")
    for kind in Kind:
        yield "IDLE", frame(kind, length=MOST)
        yield "COMMITTING", frame(kind, length=MOST)
    for state in ("IDLE", "COMMITTING"):
        yield state, frame(Kind.MESSAGE)
        yield state, frame(Kind.CANCEL, b"x")
    yield "IDLE", frame(Kind.PING)
    yield "IDLE", frame(Kind.PING, b"1234567")
    yield "IDLE", frame(Kind.PING, b"123456789")
    yield "IDLE", frame(Kind.MESSAGE, length=MAX_FIRST_MESSAGE_BYTES + 1)
    yield "COMMITTING", frame(Kind.MESSAGE, length=MAX_MESSAGE_BYTES + 1)


@ATTACKS.add("illegal frames in every state", least_ratio=0.2, peak_mib=32, short_seconds=2.0)
def every_illegal_frame(scene: Scene) -> None:
    """In REPLYING it follows the header in one go: the server's turn begins with that."""
    (session,) = join(scene)
    cases = list(illegal_frames(scene, session))
    scene.begin()
    for state, wrong in itertools.cycle(cases):
        if not scene.running:
            break
        with Lane(scene, session) as lane:
            if state != "HELLO":
                lane.begin()
            if state == "COMMITTING":
                lane.proceed()
            if state == "REPLYING":
                lane.send(frame(Kind.MESSAGE, session.commit().opening().SerializeToString()) + wrong)
            else:
                lane.send(wrong)
            if not lane.is_closed(AT_ONCE):
                scene.complain(f"{state}: not closed after {wrong[:24]!r}")
            scene.facts["frames"] += 1
    scene.facts["cases"] = len(cases)


def flood_after_hello(frames: bytes, *, reads: bool) -> Callable[[Scene], None]:
    """A session that says HELLO and then this for ever; closed, it begins anew."""

    def run(scene: Scene) -> None:
        sessions = itertools.cycle(join(scene, 4))
        block = frames * max(1, BLOCK_BYTES // len(frames))
        target = scene.target

        def blocks() -> Iterator[bytes]:
            yield hello(next(sessions).session_id, target.incarnation, target.token)
            yield from itertools.repeat(block)

        scene.begin()
        flood(scene, connect, blocks, reads=reads, connections=4)

    return run


for _reads, _name in ((True, ""), (False, ", answers not read")):
    ATTACKS.add(f"flood of PING{_name}", quick=not _reads, least_ratio=0.2, peak_mib=32)(
        flood_after_hello(frame(Kind.PING, b"12345678"), reads=_reads)
    )
ATTACKS.add("flood of CANCEL", quick=False, least_ratio=0.2, peak_mib=32)(
    flood_after_hello(frame(Kind.CANCEL), reads=True)
)


@ATTACKS.add("300 sessions that begin a first message and stop", peak_mib=64)
def begun_first_messages(scene: Scene) -> None:
    sessions = join(scene, 300)
    half = frame(Kind.MESSAGE, bytes(MAX_FIRST_MESSAGE_BYTES // 2), length=MAX_FIRST_MESSAGE_BYTES)
    target = scene.target
    scene.begin()
    hold(
        scene,
        connect,
        lambda number: hello(sessions[number].session_id, target.incarnation, target.token) + half,
        len(sessions),
    )


def begun_chunk() -> bytes:
    """The first half of the largest chunk's message."""
    chunk = bytes(2 * 1024 * 1024)
    content = commit_pb2.CommitRequest(chunk=chunk).SerializeToString()
    return frame(Kind.MESSAGE, content[: len(content) // 2], length=len(content))


def stop_within_commits(scene: Scene, count: int) -> None:
    """Sessions that get their staging buffer, as far as there are any, and stop in their first chunk."""
    sessions = join(scene, count)
    half = begun_chunk()
    target = scene.target

    def first(number: int) -> bytes:
        session = sessions[number]
        return hello(session.session_id, target.incarnation, target.token) + frame(
            Kind.MESSAGE, session.commit().opening().SerializeToString()
        )

    scene.begin()
    lanes = []
    for number in range(count):
        lane = Lane(scene, sessions[number])
        lane.send(first(number))
        lanes.append(lane)
    for lane in lanes:
        if not scene.running:
            break
        # WELCOME and proceed; those beyond the buffers that there are wait for it, and so does this.
        lane.socket.settimeout(max(0.01, min(1.0, scene.left)))
        try:
            if lane.receive()[0] == Kind.WELCOME and lane.receive()[0] == Kind.MESSAGE:
                scene.facts["granted"] += 1
                lane.socket.settimeout(0.2)
                lane.send(half)
        except TimeoutError:
            break
    scene.sleep(1e9)
    for lane in lanes:
        lane.socket.close()


# 128 staging buffers of this model are there: without and with a queue before them.
ATTACKS.add("100 sessions that begin a chunk and stop", quick=False, peak_mib=64)(
    lambda scene: stop_within_commits(scene, 100)
)
ATTACKS.add("300 sessions that begin a chunk and stop", seconds=14.0, quick=False, peak_mib=64)(
    lambda scene: stop_within_commits(scene, 300)
)


@ATTACKS.add("50 sessions that do not read their replies", least_ratio=0.2, peak_mib=64)
def slow_readers(scene: Scene) -> None:
    """Each commits once, and then asks for that commit's verdict again and again: an answer has the parameters, too."""
    sessions = iter(join(scene, 50))
    target = scene.target

    def blocks() -> Iterator[bytes]:
        session = next(sessions, None)
        if session is None:
            return
        commit = session.commit()
        yield hello(session.session_id, target.incarnation, target.token)
        yield frame(Kind.MESSAGE, commit.whole().SerializeToString())
        again = frame(Kind.MESSAGE, commit.repeated().opening().SerializeToString())
        while scene.running:
            yield again

    scene.begin()
    flood(scene, to_port(lambda target: target.lane_port, receive_buffer=4096), blocks, reads=False, connections=50)


# -- mutated frames ----------------------------------------------------------------------------------------------------


def mutated(draw: random.Random, content: bytes) -> bytes:
    """The same with one thing wrong, or some."""
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(damaged) or 1)
        match draw.randrange(6):
            case 0 if damaged:
                damaged[place] ^= 1 << draw.randrange(8)
            case 1 if damaged:
                damaged[place] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del damaged[place : place + draw.randrange(1, 9)]
            case 3:
                damaged[place:place] = draw.randbytes(draw.randrange(1, 9))
            case 4:
                damaged[place:place] = damaged[place : place + draw.randrange(1, 40)]
            case 5 if len(damaged) >= 4:
                struct.pack_into("<I", damaged, 0, draw.choice((0, 1, 4096, 4097, 1 << 16, 1 << 31, MOST)))
    return bytes(damaged)


@ATTACKS.add("100 000 mutated frames", processes=2, seconds=150.0, least_ratio=0.2, peak_mib=32)
def mutations(scene: Scene) -> None:
    """Every second one is a HELLO, the others are what follows one; each on a connection of its own."""
    number = scene.target.number
    draw = random.Random(20_261 + number)
    (session,) = join(scene)
    target = scene.target
    scene.begin()
    while scene.running and scene.facts["frames"] < MUTATED_FRAMES // 2:
        scene.facts["frames"] += 1
        own = hello(session.session_id, target.incarnation, target.token)
        try:
            with connect(scene) as connection:
                if draw.random() < 0.5:
                    connection.sendall(mutated(draw, own))
                    continue
                commit = session.commit()
                good = draw.choice((commit.whole(), commit.opening(), commit.repeated().opening())).SerializeToString()
                follows = draw.choice(
                    (frame(Kind.MESSAGE, good), frame(Kind.PING, b"12345678"), frame(Kind.CANCEL), own)
                )
                connection.sendall(own + mutated(draw, follows))
                # Until the server has seen it: its WELCOME, at least.
                connection.settimeout(0.5)
                connection.recv(64)
        except OSError:
            scene.facts["refused"] += 1
