"""Callers without the right certificate or token: the right status for every call, and nothing of it is read."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.faults.processes import count, kill, log_of, start
from tests.faults.test_giant_requests import NO_SPARE_MEMORY
from tests.figures import Figures
from tests.security.authority import Authority, Pair, replace
from tests.security.test_tokens import MAY, METHODS, OBSERVER, OPERATOR, TOKENS, WORKER, bearer
from tests.waiting import eventually_async, happens_async
from tests.wire.calls import path_of
from tests.wire.processes import PeakMeter, ServerProcess
from tests.wire.refusals import PATIENCE, read_refusal

MIB = 1024 * 1024
# What would cost 120 MiB if it were parsed.
MESSAGE = b"\x1a\x00" * MIB
# In gRPC's own hands, until it has told a caller that nobody reads what he sends.
IN_FLIGHT = 8 * MIB
# Calls until the server's libraries have what they keep for the next connections: some MiB, and no more of them later.
WARM_UP = 100
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
TAKEN_AWAY = "once-good-" * 3

Connect = Callable[[], grpc.Channel]


def with_tls(address: str, authority: Authority, own: Pair | None) -> Connect:
    """Connections, each a new one, of a client that shows this certificate."""
    shown = (None, None) if own is None else (own.key, own.certificate)
    credentials = grpc.ssl_channel_credentials(authority.pem, *shown)
    return lambda: grpc.secure_channel(address, credentials, OWN_CONNECTION)


def call(connect: Connect, method: str, token: str | None) -> grpc.StatusCode:
    described = METHODS[method]
    kinds = ("stream" if one else "unary" for one in (described.client_streaming, described.server_streaming))
    with connect() as channel:
        made = getattr(channel, "_".join(kinds))(path_of(method))
        metadata = None if token is None else tuple(bearer(token).items())
        message = iter([MESSAGE]) if described.client_streaming else MESSAGE
        try:
            answer = made(message, metadata=metadata, timeout=PATIENCE)
            if described.server_streaming:
                next(answer, None)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:  # then nobody has answered
                read_refusal(error)  # type: ignore[arg-type]  # has what an AioRpcError has
            return error.code()
    return grpc.StatusCode.OK


async def status_of(connect: Connect, method: str, token: str | None) -> grpc.StatusCode:
    """What one call comes to, with a request of 2 MiB; by the blocking client, which never loses a server's status."""
    return await asyncio.to_thread(call, connect, method, token)


async def at_rest(server: ServerProcess, at_most: float = 0.0) -> int:
    """The least anonymous memory within a moment, or within some seconds when it has to come down to a value first.

    What a closed connection held goes when the server comes to it, and it may be busy with others.
    """
    seen: list[int] = []

    def look() -> bool:
        seen.append(server.anonymous_bytes())
        return seen[-1] <= at_most

    await happens_async(look, patience=5.0 if at_most else 0.2, interval=0.03)
    return min(seen)


@pytest.mark.timeout(1200)
async def test_no_call_of_a_stranger_is_read(tmp_path: Path, figures: Figures) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    certificate, key = authority.pair("server").write(tmp_path, "server")
    tokens = replace(tmp_path / "tokens", f"{TOKENS}worker {TAKEN_AWAY}\n")
    settings = {"tls_cert": certificate, "tls_key": key, "tls_client_ca": authority.file, "tokens": tokens}
    told = {name: str(path) for name, path in settings.items()}
    server = await start(tmp_path / "data", environment=NO_SPARE_MEMORY, **told)
    address = server.address
    good = with_tls(address, authority, authority.pair("client"))
    handshake, token, role = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    )
    # By what is wrong with them: how they come, with which token, and what they must be told.
    strangers = {
        "no TLS": (lambda: grpc.insecure_channel(address, OWN_CONNECTION), OPERATOR, handshake),
        "no certificate": (with_tls(address, authority, None), OPERATOR, handshake),
        "a stranger's certificate": (with_tls(address, authority, stranger.pair("client")), OPERATOR, handshake),
        "an expired certificate": (
            with_tls(address, authority, authority.pair("client", days=-1)),
            OPERATOR,
            handshake,
        ),
        "no token": (good, None, token),
        "an unknown token": (good, "x" * 24, token),
        "a token that was taken away": (good, TAKEN_AWAY, token),
        "a worker's token": (good, WORKER, role),
        "an observer's token": (good, OBSERVER, role),
    }
    forbidden = {
        "a worker's token": set(METHODS) - MAY["worker"],
        "an observer's token": set(METHODS) - MAY["observer"],
    }
    try:
        assert await status_of(good, "GetStatus", TAKEN_AWAY) is role  # a worker's; known until now
        replace(tokens, TOKENS)

        async def is_taken_away() -> bool:
            return await status_of(good, "GetStatus", TAKEN_AWAY) is token

        await eventually_async(is_taken_away, interval=0.1)
        for connect in [with_tls(address, authority, None)] * WARM_UP + [good] * WARM_UP:
            await status_of(connect, "Join", None)
        calls, kept, highest = 0, {}, 0
        for name, (connect, shown, expected) in strangers.items():
            methods = sorted(forbidden.get(name, METHODS))
            before = await at_rest(server)
            with PeakMeter(server) as meter:
                for method in methods * count(1, 20):
                    assert await status_of(connect, method, shown) is expected, f"{method} with {name}"
                    calls += 1
            kept[name] = (await at_rest(server, before + MIB // 2) - before) / MIB
            highest = max(highest, meter.peak - before)
        assert await status_of(good, "Control", OPERATOR) is grpc.StatusCode.INVALID_ARGUMENT  # and he is let in
    finally:
        await kill(server)
    figures(
        "no, wrong or expired certificate or token",
        f"{calls} calls of 2 MiB each: with {', '.join(list(strangers)[:4])} UNAVAILABLE (no connection), with "
        f"{', '.join(list(strangers)[4:7])} UNAUTHENTICATED, with another role's PERMISSION_DENIED; at most "
        f"{max(kept.values()):.2f} MiB more afterwards, {highest / MIB:.1f} MiB more meanwhile",
    )
    assert max(kept.values()) < 2, kept  # less than one message
    assert highest < IN_FLIGHT
    assert "Traceback" not in log_of(tmp_path / "data").read_text()
