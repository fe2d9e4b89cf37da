"""Refusals: those that ask to come back are obeyed, the end of the run is reported, the rest is raised by name."""

import grpc
import numpy as np
import pytest
from gem_worker.client import EventKind, RunFinishedError, RunState, ServerRefusedError, ServerUnavailableError
from gem_worker.client.errors import ServerMisbehavedError
from gemps.v1 import run_pb2

from gem_core.checksum import crc32c
from tests.client.conftest import Connect, Connected, Script
from tests.client.models import LARGE, SMALL, buffer, payload
from tests.client.scripted_server import ScriptedServer, refuse

Status = grpc.StatusCode


def joined(connect: Connect, server: ScriptedServer, **settings: float) -> Connected:
    connected = connect(server.address, server.layout, **settings)
    connected.client.join()
    connected.client.pull(buffer(server.layout))
    return connected


@pytest.mark.parametrize(("code", "reason"), [(Status.RESOURCE_EXHAUSTED, "WAITING_ROOM"), (Status.ABORTED, "STALLED")])
def test_refused_commit_with_a_retry_hint_is_sent_again(
    code: Status, reason: str, script: Script, connect: Connect
) -> None:
    server = script(LARGE)
    connected = joined(connect, server)
    server.at("commit", *[refuse(code, reason, retry_after=0.01)] * 3)
    outcome = connected.client.commit(payload(LARGE, 0.5), buffer(LARGE))
    assert outcome.applied
    assert len(server.applied) == 1
    checksum = crc32c(payload(LARGE, 0.5))
    assert [request.header.payload_crc32c for request in server.headers[1:]] == [checksum] * 3  # optional in the first
    assert connected.kinds() == [EventKind.SERVER_BUSY, EventKind.CONNECTION_BACK]


def test_busy_server_does_not_use_up_the_patience_for_lost_ones(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server, connect_timeout=0.05)
    server.at("commit", *[refuse(Status.RESOURCE_EXHAUSTED, "WAITING_ROOM", retry_after=0.05)] * 4)
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied


def test_pull_with_a_retry_hint_is_repeated(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    server.at("pull", refuse(Status.RESOURCE_EXHAUSTED, "TOO_MANY", retry_after=0.01))
    connected.client.pull(buffer(SMALL))


def test_join_of_a_full_server_is_repeated_until_the_patience_is_over(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = connect(server.address, SMALL, connect_timeout=0.05)
    server.at("join", *[refuse(Status.RESOURCE_EXHAUSTED, "TOO_MANY", retry_after=0.02)] * 1000)
    with pytest.raises(ServerUnavailableError, match="TOO_MANY"):
        connected.client.join()


def test_commit_refused_at_the_end_of_the_run_raises_run_finished(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    server.at("commit", refuse(Status.FAILED_PRECONDITION, "RUN_FINISHED"))
    with pytest.raises(RunFinishedError):
        connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert connected.client.run_state is RunState.FINISHED
    connected.client.leave("finished")
    assert server.calls[-1] == "Leave finished"


def test_last_commit_of_a_run_says_that_it_is_finished(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    server.run_state = run_pb2.RUN_STATE_FINISHED
    outcome = connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert outcome.applied
    assert outcome.run_finished


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Status.INVALID_ARGUMENT, "BAD_VALUE"),
        (Status.DATA_LOSS, "CHECKSUM"),
        (Status.FAILED_PRECONDITION, "LAYOUT_MISMATCH"),
        (Status.ALREADY_EXISTS, "SEQUENCE_REUSED"),
        (Status.RESOURCE_EXHAUSTED, "MEMORY"),
        (Status.INTERNAL, "INTERNAL"),
        (Status.UNAUTHENTICATED, "CREDENTIALS"),
        (Status.FAILED_PRECONDITION, "A_REASON_OF_A_LATER_VERSION"),
    ],
)
def test_refused_commit_without_a_hint_is_raised_once_and_the_session_goes_on(
    code: Status, reason: str, script: Script, connect: Connect
) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    version = connected.client.version
    server.at("commit", refuse(code, reason))
    with pytest.raises(ServerRefusedError, match=reason) as caught:
        connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert caught.value.reason == reason
    assert caught.value.retry_after is None
    assert len(server.headers) == 1
    assert connected.client.version == version
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied


def test_error_info_of_somebody_else_is_not_taken_for_the_servers(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    server.at("commit", refuse(Status.FAILED_PRECONDITION, "RUN_FINISHED", domain="proxy.example"))
    with pytest.raises(ServerRefusedError, match="FAILED_PRECONDITION"):
        connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))


@pytest.mark.parametrize("reason", ["STARTING", "DRAINING"])
def test_server_that_starts_or_drains_is_waited_for(reason: str, script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = connect(server.address, SMALL)
    server.at("join", *[refuse(Status.UNAVAILABLE, reason, retry_after=0.2)] * 3)
    connected.client.join()
    assert connected.kinds() == [EventKind.WAITING_FOR_SERVER, EventKind.CONNECTION_BACK]
    connected.client.pull(buffer(SMALL))
    server.at("commit", refuse(Status.UNAVAILABLE, reason, retry_after=0.2))
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied


def test_stream_reset_by_something_between_is_torn_and_not_a_refusal(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = joined(connect, server)
    server.at("commit", refuse(Status.INTERNAL, None))
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied


def test_server_that_sends_another_model_is_reported(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = connect(server.address, SMALL)
    connected.client.join()
    server.layout = LARGE
    server.theta = np.zeros(LARGE.parameter_count, np.float32)
    with pytest.raises(ServerMisbehavedError, match="layout"):
        connected.client.pull(buffer(SMALL))
