"""A server that was restarted, or has lost the session: join again, pull, and never apply an old gradient."""

from typing import Any

import grpc
import pytest
from gem_worker.client import EventKind, MisuseError, NotInitializedError, ServerUnavailableError, SupersededError

from tests.client.conftest import Connect, Connected, Script
from tests.client.models import LARGE, SMALL, buffer, payload
from tests.client.scripted_server import Action, ScriptedServer, refuse, tear

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def trained(connect: Connect, server: ScriptedServer, **settings: Any) -> Connected:
    """A worker that has committed once."""
    connected = connect(server.address, server.layout, **settings)
    connected.client.join()
    connected.client.pull(buffer(server.layout))
    connected.client.commit(payload(server.layout, 1.0), buffer(server.layout))
    return connected


def then_tear(*actions: Action) -> Action:
    def action() -> None:
        for one in actions:
            one()
        tear()

    return action


def test_delta_is_dropped_when_the_server_was_restarted(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.restart(ledger=False)
    into = buffer(SMALL)
    outcome = connected.client.commit(payload(SMALL, 0.5), into)
    assert not outcome.applied
    assert outcome.verdict is None
    assert outcome.version.incarnation == server.incarnation == connected.client.membership.incarnation
    assert len(server.applied) == 1
    assert bytes(into) == bytes(server.state())
    assert connected.kinds() == [
        EventKind.JOINED_AGAIN,
        EventKind.CONNECTION_BACK,
        EventKind.DELTA_DROPPED,
    ]
    # The new server knows no commit of this session: its sequences start at 1.
    following = connected.client.commit(payload(SMALL, 0.5), into)
    assert following.verdict is not None
    assert following.verdict.sequence == 1
    assert len(server.applied) == 2


def test_session_keeps_its_id_over_a_restart(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    (before,) = server.sessions
    server.restart(ledger=False)
    connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert list(server.sessions) == [before]


def test_commit_applied_just_before_a_restart_counts_once(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.at("committed", then_tear(lambda: server.restart(ledger=True)))
    into = buffer(SMALL)
    outcome = connected.client.commit(payload(SMALL, 0.5), into)
    assert outcome.applied
    assert outcome.verdict is not None
    assert (outcome.verdict.sequence, outcome.verdict.duplicate) == (2, True)
    assert len(server.applied) == 2
    assert bytes(into) == bytes(server.state())
    assert outcome.version.incarnation == server.incarnation
    assert EventKind.DELTA_DROPPED not in connected.kinds()


def test_commit_whose_verdict_the_restart_lost_is_reported_as_applied_without_one(
    script: Script, connect: Connect
) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.at("committed", then_tear(lambda: server.restart(ledger=True)))
    into = buffer(SMALL)
    server.at("commit", lambda: None, refuse(PRECONDITION, "SEQUENCE_GAP"))
    outcome = connected.client.commit(payload(SMALL, 0.5), into)
    assert outcome.applied
    assert outcome.verdict is None
    assert outcome.version.incarnation == server.incarnation
    assert bytes(into) == bytes(server.state())


def test_commit_lost_with_the_old_server_is_dropped_and_the_resumed_count_goes_on(
    script: Script, connect: Connect
) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.at("commit", then_tear(lambda: server.restart(ledger=True)))
    outcome = connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert not outcome.applied
    assert len(server.applied) == 1
    following = connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert following.verdict is not None
    assert following.verdict.sequence == 2


def test_restart_that_kept_the_session_still_drops_the_delta(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)

    def new_incarnation() -> None:
        server.incarnation += 1

    server.at("commit", then_tear(new_incarnation))
    outcome = connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert not outcome.applied
    assert connected.client.membership.incarnation == outcome.version.incarnation == server.incarnation
    assert len(server.applied) == 1


def test_server_resumed_from_an_older_checkpoint_is_followed_back(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    for _ in range(3):
        connected.client.commit(payload(SMALL, 1.0), buffer(SMALL))
    server.restart(ledger=True)
    (saved,) = server.saved.values()
    saved.last_applied = 2  # of 4
    assert not connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied
    following = connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert following.verdict is not None
    assert following.verdict.sequence == 3


def test_reply_torn_by_a_restart_ends_with_the_new_servers_parameters(script: Script, connect: Connect) -> None:
    server = script(LARGE)
    connected = trained(connect, server)
    server.at("reply-chunk", lambda: None, then_tear(lambda: server.restart(ledger=False)))
    into = buffer(LARGE)
    outcome = connected.client.commit(payload(LARGE, 0.5), into)
    assert outcome.applied
    assert outcome.verdict is not None
    assert outcome.version.incarnation == server.incarnation
    assert bytes(into) == bytes(server.state())
    following = connected.client.commit(payload(LARGE, 0.5), into)
    assert following.verdict is not None
    assert following.verdict.sequence == 1


@pytest.mark.parametrize("reason", ["STALE_BASE", "SEQUENCE_GAP", "UNKNOWN_INCARNATION", "EXPIRED_SESSION"])
def test_refusal_of_an_old_gradient_drops_it_and_pulls(reason: str, script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.at("commit", refuse(PRECONDITION, reason))
    into = buffer(SMALL)
    outcome = connected.client.commit(payload(SMALL, 0.5), into)
    assert not outcome.applied
    assert len(server.applied) == 1
    assert bytes(into) == bytes(server.state())
    assert connected.events[-1].kind is EventKind.DELTA_DROPPED
    assert reason in connected.events[-1].message
    assert connected.client.commit(payload(SMALL, 0.5), into).applied


def test_server_restarted_without_parameters_asks_for_new_ones(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.restart(ledger=False, parameters=False)
    with pytest.raises(NotInitializedError, match="--resume"):
        connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert not connected.client.membership.has_parameters
    assert connected.client.initialize(payload(SMALL, 3.0))
    connected.client.pull(buffer(SMALL))
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied


def test_server_that_stops_and_starts_on_its_port_is_found_again(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.stop()
    server.start()
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied


def test_server_that_stays_away_is_given_up_and_pull_goes_on_when_it_is_back(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = connect(server.address, SMALL, connect_timeout=0.3)
    client = connected.client
    client.join()
    client.pull(buffer(SMALL))
    server.at("committed", tear)
    server.at("heartbeat", *[tear] * 1000)
    with pytest.raises(ServerUnavailableError, match=r"gemps serve"):
        client.commit(payload(SMALL, 0.5), buffer(SMALL))
    # Whether that commit counts is unknown to the caller; nothing may be committed on top of it unseen.
    with pytest.raises(MisuseError, match=r"pull\(\) first"):
        client.commit(payload(SMALL, 0.25), buffer(SMALL))
    server.clear("heartbeat")
    client.pull(buffer(SMALL))
    following = client.commit(payload(SMALL, 0.25), buffer(SMALL))
    assert following.verdict is not None
    assert following.verdict.sequence == 2
    assert len(server.applied) == 2


def test_interrupted_commit_leaves_a_client_that_can_go_on(script: Script, connect: Connect) -> None:
    server = script(SMALL)

    def interrupt_once(_: float) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    client = connect(server.address, SMALL, sleep=interrupt_once).client
    client.join()
    client.pull(buffer(SMALL))
    server.at("committed", tear)
    with pytest.raises(KeyboardInterrupt):
        client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert client.version is None
    client.pull(buffer(SMALL))
    following = client.commit(payload(SMALL, 0.25), buffer(SMALL))
    assert following.verdict is not None
    assert following.verdict.sequence == 2
    assert len(server.applied) == 2


def test_interrupted_pull_leaves_no_version_to_commit_on(script: Script, connect: Connect) -> None:
    server = script(SMALL)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    connected = trained(connect, server, sleep=interrupt)
    server.at("pull", tear)
    with pytest.raises(KeyboardInterrupt):
        connected.client.pull(buffer(SMALL))
    with pytest.raises(MisuseError, match=r"pull\(\) first"):
        connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))


def test_worker_whose_name_was_taken_over_says_so_and_does_not_fight(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.at("commit", refuse(grpc.StatusCode.ABORTED, "NEWER_SESSION"))
    with pytest.raises(SupersededError, match="every worker its own name"):
        connected.client.commit(payload(SMALL, 0.5), buffer(SMALL))
    assert server.calls.count("Join") == 1
    assert "Heartbeat" not in server.calls


def test_stream_that_a_newer_call_of_our_own_ended_is_repeated(script: Script, connect: Connect) -> None:
    server = script(SMALL)
    connected = trained(connect, server)
    server.at("commit", refuse(grpc.StatusCode.ABORTED, "NEWER_CALL"))
    assert connected.client.commit(payload(SMALL, 0.5), buffer(SMALL)).applied
    assert len(server.applied) == 2
