"""Who can join a server whose sessions are all taken, and whose session ends for that."""

import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.state.places import CROWD_AT_LEAST, IDLE_SECONDS, Origin, network_of
from gem_server.state.sessions import Session

from .builders import Registry

FULL = 128
CROWD, ELSEWHERE = Origin("192.0.2.1", b"leaked"), Origin("198.51.100.7", b"team")


def full(origin: Origin = CROWD, count: int = FULL, *, trains: bool = True, has_committed: bool = True) -> Registry:
    """A server that is full of sessions from one place."""
    registry = Registry(max_sessions=count)
    for number in range(count):
        session = registry.join(number, origin=origin)
        session.entry.last_applied = int(has_committed)
    if trains:
        registry.run.consider_start(True, count)
    return registry


def is_refused(registry: Registry, number: int, origin: Origin) -> bool:
    try:
        registry.join(number, origin=origin)
    except RefusedError as refusal:
        return refusal.reason is Reason.TOO_MANY and "raise limits.max_sessions" in refusal.message
    return False


@pytest.mark.parametrize("other", [ELSEWHERE, Origin("192.0.2.1", b"team"), Origin("198.51.100.7", b"leaked")])
def test_another_token_or_address_can_join_while_one_has_all_sessions(other: Origin) -> None:
    """Also where each of them commits, so that nothing but their number tells them from honest workers."""
    registry = full()
    ended: list[Session] = []
    registry.sessions.on_displaced.append(ended.append)
    registry.join(1000, origin=other)
    assert len(registry.sessions) == FULL
    assert [session.worker.name for session in ended] == ["worker-0"]
    reason = ended[0].ended
    assert reason is not None
    assert reason.reason is Reason.EXPIRED_SESSION


def test_a_crowd_gives_up_an_eighth_and_does_not_get_it_back() -> None:
    registry = full()
    for number in range(FULL // 8):
        registry.join(1000 + number, origin=ELSEWHERE)
    assert is_refused(registry, 2000, ELSEWHERE)
    assert is_refused(registry, 2000, CROWD)


def test_the_session_with_the_fewest_commits_goes_and_none_with_a_commit_in_the_queue() -> None:
    registry = full()
    live = registry.sessions.live()
    for session in live:
        session.entry.last_applied = 10
    live[20].entry.last_applied, live[30].entry.last_applied = 1, 2
    live[20].queued_sequence = 2
    registry.join(1000, origin=ELSEWHERE)
    assert live[20].ended is None
    assert live[30].ended is not None


def test_within_one_token_and_address_a_session_that_never_committed_goes_and_workers_that_train_stay() -> None:
    registry = full()
    assert is_refused(registry, 1000, CROWD)
    idle = registry.sessions.live()[40]
    idle.entry.last_applied = 0
    registry.now = IDLE_SECONDS - 1
    assert is_refused(registry, 1000, CROWD)
    registry.now = IDLE_SECONDS
    registry.join(1000, origin=CROWD)
    assert idle.ended is not None
    assert len(registry.sessions) == FULL


def test_who_waits_for_the_server_or_for_the_runs_start_keeps_its_place() -> None:
    waiting = full(trains=False, has_committed=False)
    waiting.now = 10 * IDLE_SECONDS
    assert is_refused(waiting, 1000, CROWD)
    busy = full(has_committed=False)
    busy.now = 10 * IDLE_SECONDS
    for session in busy.sessions.live():
        session.open_calls = 1
    assert is_refused(busy, 1000, CROWD)
    for session in busy.sessions.live():
        session.idle_calls = 1  # now the server waits for the workers
    assert not is_refused(busy, 1000, CROWD)


def test_idle_sessions_of_the_largest_crowd_go_first() -> None:
    registry = full(count=100, has_committed=False)
    registry.sessions.leave(registry.sessions.live()[50])
    honest = registry.join(500, origin=ELSEWHERE)
    for number in range(200):
        registry.now += IDLE_SECONDS
        registry.join(1000 + number, origin=CROWD)
    assert honest.ended is None


def test_five_hundred_workers_of_one_token_and_address_join_and_all_stay() -> None:
    registry = Registry(max_sessions=1024)
    sessions = [registry.join(number, origin=CROWD) for number in range(500)]
    assert all(session.ended is None for session in sessions)


def test_a_small_limit_is_kept_as_it_is_by_workers_of_any_address() -> None:
    registry = full(count=CROWD_AT_LEAST)
    assert is_refused(registry, 1000, ELSEWHERE)


def test_a_worker_whose_origin_is_unknown_ends_nobodys_session() -> None:
    registry = full(has_committed=False)
    registry.now = 10 * IDLE_SECONDS
    assert is_refused(registry, 1000, Origin())


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("[::ffff:192.0.2.7]", "192.0.2.7"),
        ("[::1]", "::1"),
        ("[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]", "fe80::/64"),
        ("unix", "unix"),
        ("", "local"),
    ],
)
def test_addresses_of_one_ipv6_network_are_one_origin(host: str, network: str) -> None:
    assert network_of(host) == network
