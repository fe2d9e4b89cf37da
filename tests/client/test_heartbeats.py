"""Heartbeats: while there is no call, and only then."""

import threading

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


def test_open_stream_needs_no_heartbeat_until_it_breaks(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL, heartbeat_interval=OFTEN).client
    client.join()
    client.pull(buffer(SMALL))
    client.commit(payload(SMALL, 0.5), buffer(SMALL))
    before = server.calls.count("Heartbeat")
    # The watchdog looks four times an interval; it has looked when it was stopped after so many looks.
    looks = threading.Semaphore(0)
    beat = client._watchdog._beat

    def counted() -> None:
        beat()
        looks.release()

    client._watchdog._beat = counted
    for _ in range(3):
        assert looks.acquire(timeout=60)
    assert server.calls.count("Heartbeat") == before
    beaten = threading.Event()
    server.at("heartbeat", beaten.set)
    server.stop()
    server.start()
    assert beaten.wait(60)


def test_client_that_has_not_joined_or_has_left_is_silent(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL, heartbeat_interval=OFTEN).client
    client.join()
    client.leave("done")
    looks = threading.Semaphore(0)
    beat = client._watchdog._beat

    def counted() -> None:
        beat()
        looks.release()

    client._watchdog._beat = counted
    for _ in range(2):
        assert looks.acquire(timeout=60)
    assert server.calls[-1] == "Leave done"


def test_closing_ends_the_thread(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    client.join()
    thread = client._watchdog._thread
    assert thread is not None
    assert thread.is_alive()
    client.close()
    assert not thread.is_alive()
