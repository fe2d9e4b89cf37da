"""Attacks at the dashboard: slow and giant requests, viewers that do not read, floods."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from tests.hostile.attacks import Attacks, Scene, flood, hold, storm, to_port

ATTACKS = Attacks("dashboard", frozenset({"dashboard"}))

MIB = 1024 * 1024
PORT = to_port(lambda target: target.dashboard_port)
NARROW_PORT = to_port(lambda target: target.dashboard_port, receive_buffer=4096)


def request(scene: Scene, path: str = "/", method: str = "GET", *headers: str) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{scene.target.dashboard_port}", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode()


@ATTACKS.add("1200 connections that say nothing", peak_mib=64, quick=False)
def silent(scene: Scene) -> None:
    scene.begin()
    hold(scene, PORT, b"", 1200)


@ATTACKS.add("1200 slow headers, one byte a second", peak_mib=64)
def slow_headers(scene: Scene) -> None:
    """Slowloris."""
    scene.begin()
    hold(scene, PORT, request(scene), 1200, drip=b"X-Slow: " + b"a" * 4000)


@ATTACKS.add("400 viewers that do not read", peak_mib=64)
def unread_events(scene: Scene) -> None:
    content = request(scene, "/events") + b"\r\n"
    scene.begin()
    flood(scene, NARROW_PORT, lambda: iter([content, b""]), reads=False, connections=400)


@ATTACKS.add("viewers that come and go", least_ratio=0.2, peak_mib=64, quick=False)
def restless_viewers(scene: Scene) -> None:
    scene.begin()
    storm(scene, PORT, request(scene, "/events") + b"\r\n")


@ATTACKS.add("requests in a row, answers not read", peak_mib=64)
def unread_answers(scene: Scene) -> None:
    block = (request(scene) + b"\r\n") * 1000
    scene.begin()
    flood(scene, NARROW_PORT, lambda: itertools.repeat(block), reads=False, connections=16)


for _path in ("/", "/metrics", "/nothing"):
    ATTACKS.add(f"flood of requests for {_path}", peak_mib=64, quick=_path == "/metrics")(
        partial(
            lambda scene, path: (
                scene.begin(),
                flood(scene, PORT, lambda: itertools.repeat((request(scene, path) + b"\r\n") * 20), connections=4),
            ),
            path=_path,
        )
    )


@ATTACKS.add("giant headers", least_ratio=0.2, peak_mib=64)
def giant_headers(scene: Scene) -> None:
    """A line of 1 MiB, and then 10 000 of them."""
    opening = request(scene)

    def blocks() -> Iterator[bytes]:
        yield opening + b"X-Large: "
        yield from itertools.repeat(b"y" * 65_536, 16)
        yield b"\r\n"
        for first in range(0, 10_000, 100):
            yield b"".join(b"X-%d: y\r\n" % number for number in range(first, first + 100))

    scene.begin()
    flood(scene, PORT, blocks, connections=8)


def giant_body(*headers: str) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        opening = request(scene, "/", "POST", *headers) + b"\r\n"
        chunk = b"%x\r\n" % 65_536 + b"z" * 65_536 + b"\r\n"
        scene.begin()
        flood(scene, PORT, lambda: itertools.chain([opening], itertools.repeat(chunk)), connections=8)

    return run


ATTACKS.add("giant bodies", peak_mib=64)(giant_body("Content-Length: 1000000000000"))
ATTACKS.add("bodies without an end", peak_mib=64, quick=False)(giant_body("Transfer-Encoding: chunked"))


@ATTACKS.add("requests under another name", quick=False, peak_mib=64)
def other_names(scene: Scene) -> None:
    block = b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n" * 20
    scene.begin()
    flood(scene, PORT, lambda: itertools.repeat(block), connections=4)


@ATTACKS.add("storm of connections", quick=False, processes=4, seconds=10.0, least_ratio=0.2, peak_mib=64)
def connection_storm(scene: Scene) -> None:
    scene.begin()
    storm(scene, PORT)
