"""Peers that speak another version of the contract are told so."""

import grpc
import pytest
from gem_server import __version__

from tests.wire.refusals import refused
from tests.wire.serving import Serving

DRAFT = "/gemps.v1.ParameterServerService/"


@pytest.mark.parametrize("method", ["Join", "Pull", "Commit", "Heartbeat", "GetStatus", "Follow", "Another"])
async def test_a_caller_of_the_drafts_service_is_refused_for_good(serving: Serving, method: str) -> None:
    """This holds for every kind of call, and the metadata says that it is final (refusals.py)."""
    call = serving.channel.stream_stream(DRAFT + method)()
    refusal = await refused(call.read(), "VERSION")
    assert "gemps 0.1" in refusal.message
    assert __version__ in refusal.message
    assert "update the caller's gemps package" in refusal.message


async def test_a_unary_caller_of_the_drafts_service_is_refused(serving: Serving) -> None:
    await refused(serving.channel.unary_unary(DRAFT + "Join")(b"\x0a\x00"), "VERSION")


async def test_a_service_that_never_was_is_not_offered(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await serving.channel.unary_unary("/gemps.v1.ParameterService/Join")(b"")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
