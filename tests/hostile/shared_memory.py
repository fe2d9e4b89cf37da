"""Attacks at the Unix socket that hands out shared memory, by strangers on this machine and by one session."""

import itertools
import os
import random
import socket

from gemps.v1 import shared_memory_pb2

from tests.hostile.attacks import Attacks, Scene, hold, storm
from tests.hostile.sessions import join

ATTACKS = Attacks("shared-memory socket", frozenset({"shared memory"}))

# Seconds within which a connection says who it is (shared_memory_socket.py); and what a busy server may be late.
REQUEST_SECONDS, LATE = 10.0, 2.0


def connect(scene: Scene) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(5.0)
        connection.connect(scene.target.shared_memory_socket)
    except BaseException:
        connection.close()
        raise
    return connection


@ATTACKS.add("1500 connections that say nothing", seconds=13.0, peak_mib=32)
def silent(scene: Scene) -> None:
    scene.begin()
    hold(scene, connect, b"", 1500, closed_after=REQUEST_SECONDS + LATE)


@ATTACKS.add("garbage", least_ratio=0.2, peak_mib=32)
def garbage(scene: Scene) -> None:
    draw = random.Random(scene.target.number)
    scene.begin()
    while scene.running:
        storm_once(scene, draw.randbytes(draw.choice((1, 18, 200, 256, 257, 100_000))))


def storm_once(scene: Scene, content: bytes) -> None:
    try:
        with connect(scene) as connection:
            scene.facts["connections"] += 1
            connection.send(content)
            connection.recv(8192)
    except OSError:
        scene.facts["refused"] += 1


@ATTACKS.add("requests of unknown sessions", least_ratio=0.2, peak_mib=32)
def unknown_sessions(scene: Scene) -> None:
    scene.begin()
    for number in itertools.count():
        if not scene.running:
            return
        request = shared_memory_pb2.SharedMemoryRequest(session_id=number.to_bytes(16, "big"))
        storm_once(scene, request.SerializeToString())


@ATTACKS.add("storm of connections", processes=4, seconds=10.0, least_ratio=0.2, peak_mib=32)
def connection_storm(scene: Scene) -> None:
    scene.begin()
    storm(scene, connect)


@ATTACKS.add("a session that asks again and again", least_ratio=0.2, peak_mib=64)
def asks_again(scene: Scene) -> None:
    """Each answer makes a region for its deltas, and ends the connection before."""
    (session,) = join(scene)
    request = shared_memory_pb2.SharedMemoryRequest(session_id=session.session_id).SerializeToString()
    before: socket.socket | None = None
    scene.begin()
    while scene.running:
        try:
            connection = connect(scene)
            connection.send(request)
            _, descriptors, _, _ = socket.recv_fds(connection, 8192, 16)
        except OSError:
            scene.facts["refused"] += 1
            continue
        for descriptor in descriptors:
            os.close(descriptor)
        scene.facts["connections"] += 1
        if before is not None:
            before.close()
        before = connection


@ATTACKS.add("a session that asks and does not take the answer", least_ratio=0.2, peak_mib=64)
def takes_nothing(scene: Scene) -> None:
    (session,) = join(scene)
    request = shared_memory_pb2.SharedMemoryRequest(session_id=session.session_id).SerializeToString()
    scene.begin()
    hold(scene, connect, request, 1000)
