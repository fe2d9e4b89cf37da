"""Who is let in at the commit port: by path, by the server that is meant, by token, by how many there are."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gem_server.errors import StartupError
from gem_server.security.protection import protect
from gem_server.service.commit_port import CommitPort
from gem_server.settings import ServerSettings
from gemps.http2 import CANCEL, HEADERS, RESET, frame

from tests.security.authority import replace
from tests.security.test_tokens import OBSERVER, OPERATOR, TOKENS, WORKER
from tests.server.commit_peer import INCARNATION, Stage, data, echo, on_stage, opening

OK, UNIMPLEMENTED, PERMISSION_DENIED, UNAVAILABLE, UNAUTHENTICATED = 0, 12, 7, 14, 16


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async with on_stage(max_connections=3) as made:
        yield made


async def ends(stage: Stage, **opens: str) -> int:
    """The status of a call that says one word, and whose words come back if it is let in."""
    peer = await stage.peer()
    await peer.begin()
    await peer.send(opening(**opens), data(b"hello", last=True))
    code, _ = await peer.status()
    assert (peer.payload != b"") == (code == OK)
    peer.close()
    await stage.until(lambda: not stage.port._connections)
    return code


async def test_only_the_one_method_is_served(stage: Stage) -> None:
    assert await ends(stage) == OK
    assert await ends(stage, path="/test/Join") == UNIMPLEMENTED
    assert await ends(stage, path="") == UNIMPLEMENTED
    assert stage.calls == 1


@pytest.mark.parametrize("meant", ["", "0", str(INCARNATION + 1), f"0{INCARNATION}", "x"])
async def test_a_caller_that_means_another_server_is_sent_away(stage: Stage, meant: str) -> None:
    assert await ends(stage, incarnation=meant) == UNAVAILABLE
    assert stage.calls == 0


async def test_who_accepts_a_call_says_which_server_it_is(stage: Stage) -> None:
    """Else a caller could not tell this port from anybody's who accepts all calls."""
    peer = await stage.peer()
    await peer.begin()
    await peer.send(opening())
    assert (await peer.next(HEADERS)).headers["gemps-incarnation"] == str(INCARNATION)


async def test_tokens_are_asked_for_before_a_word_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tokens = replace(tmp_path / "tokens", TOKENS)
    async with on_stage(access=protect(ServerSettings(tokens=tokens)).access) as stage:
        assert await ends(stage) == UNAUTHENTICATED
        assert await ends(stage, authorization="Bearer " + "x" * 24) == UNAUTHENTICATED
        assert await ends(stage, authorization=WORKER) == UNAUTHENTICATED
        assert await ends(stage, authorization=f"Bearer {OBSERVER}") == PERMISSION_DENIED
        assert stage.calls == 0
        assert await ends(stage, authorization=f"Bearer {WORKER}") == OK
        assert await ends(stage, authorization=f"bearer {OPERATOR}") == OK
        assert await ends(stage, authorization=f"Bearer {WORKER}", incarnation="1") == UNAVAILABLE
    assert "a call from 127.0.0.1:" in caplog.text
    for token in (WORKER, OBSERVER, OPERATOR):
        assert token not in caplog.text


async def test_connections_beyond_the_limit_are_closed_and_those_after_an_end_are_not(stage: Stage) -> None:
    first, *_ = [await stage.calling() for _ in range(3)]
    for _ in range(3):
        assert await (await stage.peer()).end() == b""
    first.close()
    await stage.until(lambda: stage.running == 2)
    await (await stage.calling()).send(data(b"hello"))
    await stage.until(lambda: stage.running == 3)


async def test_connections_without_a_call_count_too(stage: Stage) -> None:
    for _ in range(3):
        await stage.peer()
    assert await (await stage.peer()).end() == b""


async def test_a_call_that_ended_leaves_its_place_to_another(stage: Stage) -> None:
    peers = [await stage.calling() for _ in range(3)]
    for peer in peers:
        await peer.send(frame(RESET, 0, 1, CANCEL.to_bytes(4, "big")))
        peer.close()
    await stage.until(lambda: not stage.port._connections)
    assert await ends(stage) == OK


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
async def test_every_address_of_a_host_is_listened_at(host: str) -> None:
    port = CommitPort("/test/Commit", lambda _, context: echo(context), INCARNATION, 10)
    try:
        number = port.open(host, 0)
    except StartupError:
        pytest.skip(f"no {host} here")
    reached = []
    for address in ("127.0.0.1", "::1"):
        try:
            _, writer = await asyncio.open_connection(address, number)
        except OSError:
            continue
        writer.close()
        reached.append(address)
    await port.close(None)
    if host != "localhost":  # whatever the machine takes it for
        assert reached == {"127.0.0.1": ["127.0.0.1"], "0.0.0.0": ["127.0.0.1"], "::1": ["::1"]}.get(
            host, ["127.0.0.1", "::1"]
        )
    assert reached


async def test_a_port_that_is_taken_is_named_with_the_way_out(stage: Stage) -> None:
    other = CommitPort("/test/Commit", lambda _, context: echo(context), INCARNATION, 10)
    with pytest.raises(StartupError, match=f"port {stage.port.port} of 127.0.0.1 .*--commit-port"):
        other.open("127.0.0.1", stage.port.port)
    await other.close(None)


def test_the_ports_of_one_server_differ() -> None:
    with pytest.raises(ValueError, match="--commit-port 50052 is the port of --bind, too"):
        ServerSettings(bind="127.0.0.1:50052", commit_port=50_052)
    assert ServerSettings(bind="127.0.0.1:0", commit_port=0).has_commit_port
    assert not ServerSettings(commit_port=-1).has_commit_port


def test_there_is_none_with_tls(tmp_path: Path) -> None:
    settings = ServerSettings(commit_port=50_052, tls_cert=tmp_path / "crt", tls_key=tmp_path / "key")
    assert not settings.has_commit_port
