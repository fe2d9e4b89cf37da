"""A stream that breaks at any point of a commit: the delta counts once, and the worker holds what the server thinks."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from gem_worker.client import Client, EventKind

from gem_core.layout import Layout
from tests.client.conftest import Connect, Script
from tests.client.models import LARGE, LARGE_CHUNKS, SMALL, buffer, parameters_in, payload
from tests.client.scripted_server import ScriptedServer, end_quietly, go_on, tear

Breaks = Callable[[], None]


def joined(connect: Connect, server: ScriptedServer, **settings: float) -> Client:
    client = connect(server.address, server.layout, **settings).client
    client.join()
    client.pull(buffer(server.layout))
    return client


def commit_once(client: Client, server: ScriptedServer) -> None:
    """Commit, and check everything that must hold whatever broke."""
    into = buffer(server.layout)
    outcome = client.commit(payload(server.layout, 0.5), into)
    assert outcome.applied
    assert outcome.verdict is not None
    assert outcome.verdict.sequence == 1
    assert len(server.applied) == 1
    assert bytes(into) == bytes(server.state())
    assert outcome.version.clock == server.clock == 2
    assert client.version == outcome.version
    assert client.next_eta == 0.05
    # The stream's successor works.
    following = client.commit(payload(server.layout, 0.25), into)
    assert following.verdict is not None
    assert following.verdict.sequence == 2
    assert len(server.applied) == 2
    assert parameters_in(server.layout, into)[0] == 0.75


@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["whole", "chunked"])
def test_commit_on_a_sound_stream_takes_one_header_and_no_heartbeat(
    layout: Layout, script: Script, connect: Connect
) -> None:
    server = script(layout)
    client = joined(connect, server)
    commit_once(client, server)
    assert server.calls == ["Join", "Pull", "Commit"]
    assert len(server.headers) == 2


@pytest.mark.parametrize("breaks", [tear, end_quietly], ids=["by status", "by a normal end"])
@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["whole", "chunked"])
def test_commit_torn_at_its_header_is_sent_again(
    layout: Layout, breaks: Breaks, script: Script, connect: Connect
) -> None:
    server = script(layout)
    server.at("commit", breaks, breaks)
    commit_once(joined(connect, server), server)


@pytest.mark.parametrize("chunk", range(LARGE_CHUNKS))
def test_commit_torn_at_any_chunk_is_sent_again(chunk: int, script: Script, connect: Connect) -> None:
    server = script(LARGE)
    server.at("commit-chunk", *[go_on] * chunk, tear)
    commit_once(joined(connect, server), server)


@pytest.mark.parametrize("breaks", [tear, end_quietly], ids=["by status", "by a normal end"])
@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["whole", "chunked"])
def test_applied_commit_whose_verdict_was_lost_is_asked_for_by_its_header(
    layout: Layout, breaks: Breaks, script: Script, connect: Connect
) -> None:
    server = script(layout)
    server.at("committed", breaks)
    connected = connect(server.address, layout)
    client = connected.client
    client.join()
    client.pull(buffer(layout))
    commit_once(client, server)
    assert server.calls == ["Join", "Pull", "Commit", "Heartbeat", "Commit"]
    # The repeat is a header alone, and the same one, but that a first attempt need not know the checksum.
    first, repeat = (request.header for request in server.headers[:2])
    assert repeat.payload_crc32c
    first.payload_crc32c = repeat.payload_crc32c
    assert first == repeat
    assert not server.headers[1].HasField("footer")
    assert connected.kinds() == [EventKind.CONNECTION_LOST, EventKind.CONNECTION_BACK]


def test_stored_verdict_is_asked_for_until_it_arrives(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    server.at("committed", tear, tear, tear)
    commit_once(joined(connect, server), server)


@pytest.mark.parametrize("chunk", range(LARGE_CHUNKS))
def test_reply_torn_at_any_chunk_is_resumed_by_a_pull(chunk: int, script: Script, connect: Connect) -> None:
    server = script(LARGE)
    server.at("reply-chunk", *[go_on] * chunk, tear)
    client = joined(connect, server)
    commit_once(client, server)
    resumed = server.pulls[1:]
    if chunk == 0:
        assert not resumed  # the verdict travels with the first chunk, so neither came
    else:
        assert [pull.resume_offset for pull in resumed] == [chunk * server.chunk_bytes]
        assert resumed[0].resume_version.clock == 2


def test_resumed_reply_that_is_torn_again_goes_on_where_it_was(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    client = joined(connect, server)
    server.at("reply-chunk", go_on, tear)
    server.at("pull-chunk", go_on, tear, go_on, tear)
    commit_once(client, server)
    assert [pull.resume_offset // server.chunk_bytes for pull in server.pulls[1:]] == [1, 2, 3]


def test_torn_reply_is_pulled_from_the_start_when_the_snapshot_moved_on(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    client = joined(connect, server)

    def snapshot_moves_on() -> None:
        (session,) = server.sessions.values()
        assert server.theta is not None
        server.theta += np.float32(1)
        server.clock += 1
        session.snapshot, session.version = server.state(), server.version()

    server.at("reply-chunk", go_on, tear)
    server.at("pull", snapshot_moves_on)
    into = buffer(LARGE)
    outcome = client.commit(payload(LARGE, 0.5), into)
    assert outcome.applied
    assert outcome.version.clock == 3
    assert [pull.HasField("resume_version") for pull in server.pulls] == [False, True, False]
    assert bytes(into) == bytes(server.state())


@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["whole", "chunked"])
def test_reply_that_arrives_damaged_is_pulled_from_the_start(layout: Layout, script: Script, connect: Connect) -> None:
    server = script(layout)
    client = joined(connect, server)
    server.damaged_chunks = 1
    commit_once(client, server)
    assert not server.pulls[1].HasField("resume_version")


def test_pull_that_arrives_damaged_is_repeated_from_the_start(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    client = joined(connect, server)
    server.damaged_chunks = 2
    into = buffer(LARGE)
    client.pull(into)
    assert bytes(into) == bytes(server.state())
    assert not any(pull.HasField("resume_version") for pull in server.pulls)


def test_stream_that_broke_while_idle_is_replaced_without_a_word(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = connect(server.address, SMALL, heartbeat_interval=0.05)
    client = connected.client
    client.join()
    client.pull(buffer(SMALL))
    client.commit(payload(SMALL, 0.5), buffer(SMALL))
    # The watchdog sends heartbeats as soon as the stream is gone.
    noticed = threading.Event()
    server.at("heartbeat", noticed.set)
    server.streams[0].cancel()
    assert noticed.wait(60)
    assert client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied
    assert connected.events == []


@pytest.mark.parametrize("point", ["commit", "committed", "reply-chunk"])
def test_server_that_is_gone_for_a_while_is_waited_for(point: str, script: Script, connect: Connect) -> None:
    server = script(SMALL)
    client = joined(connect, server)
    server.at(point, tear)
    server.at("heartbeat", *[tear] * 5)
    commit_once(client, server)


def test_commit_is_sent_again_from_the_same_bytes(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    client = joined(connect, server)
    delta = memoryview(np.arange(25_002, dtype=np.float32).tobytes())
    server.at("commit-chunk", go_on, tear)
    client.commit(delta, buffer(LARGE))
    np.testing.assert_array_equal(server.applied[0], np.arange(25_000, dtype=np.float32))
