"""Heartbeats: while there is no call, and only then."""

import threading

import pytest
from gem_worker.client import ClientSettings
from gem_worker.client.watchdog import Watchdog

from tests.client.conftest import Connect, Script
from tests.client.models import SMALL, buffer, payload
from tests.client.scripted_server import go_on, tear

OFTEN = 0.05


def test_idle_session_is_kept_alive_over_failures(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    third = threading.Event()
    server.at("heartbeat", tear, go_on, third.set)
    connected = connect(server.address, SMALL, heartbeat_interval=OFTEN)
    connected.client.join()
    assert third.wait(60)
    assert connected.events == []


def beats_pass(count: int, script: Script, connect: Connect) -> None:
    """Return when an idle worker of another server, as patient as the tested one, has sent so many heartbeats."""
    server, last = script(SMALL), threading.Event()
    server.at("heartbeat", *[go_on] * (count - 1), last.set)
    client = connect(server.address, SMALL, heartbeat_interval=OFTEN).client
    client.join()
    assert last.wait(60)
    client.leave("done")


def test_open_stream_needs_no_heartbeat_until_it_breaks(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL, heartbeat_interval=OFTEN).client
    client.join()
    client.pull(buffer(SMALL))
    client.commit(payload(SMALL, 0.5), buffer(SMALL))
    before = server.calls.count("Heartbeat")
    beats_pass(4, script, connect)
    assert server.calls.count("Heartbeat") == before
    beaten = threading.Event()
    server.at("heartbeat", beaten.set)
    server.stop()
    server.start()
    assert beaten.wait(60)


def test_client_that_has_not_joined_or_has_left_is_silent(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL, heartbeat_interval=OFTEN).client
    beats_pass(2, script, connect)
    assert server.calls == []
    client.join()
    client.leave("done")
    beats_pass(4, script, connect)
    assert server.calls[-1] == "Leave done"


def test_closing_ends_the_thread(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    before = set(threading.enumerate())
    client.join()
    (thread,) = [one for one in threading.enumerate() if one.name == "gemps-watchdog" and one not in before]
    assert thread.is_alive()
    client.close()
    assert not thread.is_alive()


def test_a_watchdog_can_be_stopped_while_another_thread_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog(lambda: 0, lambda: None, ClientSettings())
    start = threading.Thread.start

    def stop_first(thread: threading.Thread) -> None:
        watchdog.stop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", stop_first)
    watchdog.start()
    watchdog.stop()
    assert "gemps-watchdog" not in {one.name for one in threading.enumerate()}
