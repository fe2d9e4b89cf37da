"""Silence: a dead server is given up after progress_timeout, a slow one that answers heartbeats is waited for."""

import threading

import grpc
import pytest
from gem_worker.client import EventKind

from gem_core.layout import Layout
from tests.client.conftest import Connect, Connected, Script
from tests.client.models import LARGE, SMALL, buffer, payload
from tests.client.scripted_server import ScriptedServer, go_on, refuse, tear

# Seconds without progress before a call is examined; tests wait for it, none measures it.
SHORT = 0.2


def joined(connect: Connect, server: ScriptedServer) -> Connected:
    connected = connect(server.address, server.layout, progress_timeout=SHORT, heartbeat_interval=60)
    connected.client.join()
    connected.client.pull(buffer(server.layout))
    return connected


def heartbeats_until(server: ScriptedServer, count: int) -> threading.Event:
    """Set when so many heartbeats were answered."""
    reached = threading.Event()
    server.at("heartbeat", *[go_on] * (count - 1), reached.set)
    return reached


@pytest.mark.parametrize("point", ["commit", "commit-chunk", "reply-chunk", "pull", "pull-chunk"])
def test_silent_stream_of_a_silent_server_is_ended_and_repeated(point: str, script: Script, connect: Connect) -> None:
    server = script(LARGE)
    connected = joined(connect, server)
    server.at(point, server.hang)
    server.at("heartbeat", *[tear] * 2)
    into = buffer(LARGE)
    outcome = connected.client.commit(payload(LARGE, 0.5), into)
    assert outcome.applied
    connected.client.pull(into)
    assert bytes(into) == bytes(server.state())
    assert len(server.applied) == 1
    assert server.hung.is_set()
    assert connected.kinds()[:2] == [EventKind.CONNECTION_LOST, EventKind.CONNECTION_BACK]
    assert "no progress for 0.2 s" in connected.events[0].message


def test_server_that_has_the_next_word_is_asked_after_the_heartbeat_interval(script: Script, connect: Connect) -> None:
    """Nothing moves on a path that was cut while others compute: waiting must find out sooner than uploading."""
    server = script(SMALL)
    connected = connect(server.address, SMALL, progress_timeout=60, heartbeat_interval=SHORT)
    connected.client.join()
    connected.client.pull(buffer(SMALL))
    server.at("commit", server.hang)
    server.at("heartbeat", refuse(grpc.StatusCode.UNAVAILABLE, None))
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied
    assert "no progress for 0.2 s, and no heartbeat either" in connected.events[0].message


@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["whole", "chunked"])
def test_commit_that_waits_for_its_turn_is_waited_for_while_heartbeats_are_answered(
    layout: Layout, script: Script, connect: Connect
) -> None:
    server = script(layout)
    connected = joined(connect, server)
    answered = heartbeats_until(server, 3)
    server.at("commit", lambda: _wait(answered))
    outcome = connected.client.commit(payload(layout, 0.5), buffer(layout))
    assert outcome.applied
    assert len(server.headers) == 1
    assert connected.events == []


def test_pull_that_waits_for_its_turn_is_waited_for_while_heartbeats_are_answered(
    script: Script, connect: Connect
) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    answered = heartbeats_until(server, 3)
    server.at("pull", lambda: _wait(answered))
    connected.client.pull(buffer(SMALL))
    assert len(server.pulls) == 2
    assert connected.events == []


def test_verdict_that_was_lost_in_an_open_stream_is_asked_for_again(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    server.at("committed", server.hang)
    into = buffer(SMALL)
    outcome = connected.client.commit(payload(SMALL, 0.5), into)
    assert outcome.applied
    assert outcome.verdict is not None
    assert outcome.verdict.duplicate
    assert len(server.applied) == 1
    assert "the verdict was lost" in connected.events[0].message


def test_waiting_commit_whose_session_is_unknown_by_now_joins_again(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)

    def restart_and_hang() -> None:
        server.restart(ledger=False)
        server.hang()

    server.at("commit", restart_and_hang)
    outcome = connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert not outcome.applied
    assert server.applied == []
    assert EventKind.JOINED_AGAIN in connected.kinds()


def test_initialize_that_is_stuck_is_repeated(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    server.theta, server.clock = None, 0
    client = connect(server.address, LARGE, progress_timeout=SHORT, heartbeat_interval=60).client
    client.join()
    server.at("initialize", server.hang)
    server.at("heartbeat", refuse(grpc.StatusCode.INTERNAL, "INTERNAL"))
    assert client.initialize(payload(LARGE, 1.0))
    assert server.calls.count("Initialize") == 2


def _wait(event: threading.Event) -> None:
    assert event.wait(60)
