"""The pauses between attempts, and the end of patience, on a clock of the test's own."""

import pytest
from gem_worker.client import (
    ClientEvent,
    ClientSettings,
    EventKind,
    ServerMisbehavedError,
    ServerRefusedError,
    ServerUnavailableError,
)
from gem_worker.client.errors import TornCallError
from gem_worker.client.retry import Patience


class World:
    """A clock that only sleeping moves; jitter takes what the test chooses."""

    def __init__(self, jitter: float = 1.0, limit: float | None = None, **settings: float) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.ranges: set[tuple[float, float]] = set()
        self.jitter = jitter
        self.events: list[ClientEvent] = []
        self.renewed = 0
        self.patience = Patience(
            "server:1",
            ClientSettings(**({"connect_timeout": 10, "backoff_first": 0.1, "backoff_limit": 2.0} | settings)),
            self.events.append,
            limit=limit,
            renew=self.renew,
            clock=lambda: self.now,
            sleep=self.sleep,
            uniform=self.uniform,
        )

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.now += seconds

    def renew(self) -> None:
        self.renewed += 1

    def uniform(self, low: float, high: float) -> float:
        self.ranges.add((low, high))
        return self.jitter

    def fail_for_ever(self, attempt: float = 0.0) -> None:
        """`attempt`: seconds that each one takes."""
        for _ in range(1000):
            self.now += attempt
            self.patience.failed("no")

    def refuse_for_ever(self, reason: str, message: str, *, bounded: bool) -> None:
        for _ in range(1000):
            self.patience.wait_as_asked(ServerRefusedError(reason, message, retry_after=8.0), bounded=bounded)

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]


def test_pauses_double_up_to_the_limit_and_are_jittered() -> None:
    world = World()
    for _ in range(7):
        world.patience.failed("no")
    assert world.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert world.ranges == {(0.5, 1.5)}


def test_patience_ends_after_connect_timeout_with_a_last_attempt_at_its_end() -> None:
    world = World()
    with pytest.raises(ServerUnavailableError, match=r"server:1 for 10 s \(no\)"):
        world.fail_for_ever()
    assert sum(world.pauses) == pytest.approx(10)


def test_success_renews_patience_and_pauses() -> None:
    world = World()
    for _ in range(3):
        for _ in range(8):
            world.patience.failed("no")
        world.patience.succeeded()
    assert world.pauses[8:16] == world.pauses[:8]


def test_progress_renews_patience_but_not_pauses() -> None:
    world = World()
    for _ in range(30):
        world.patience.failed("no")
        world.patience.moved_on()
    assert world.pauses[-1] == 2.0


def test_no_patience_fails_at_once_without_an_event() -> None:
    world = World(limit=0)
    with pytest.raises(ServerUnavailableError):
        world.patience.failed("no")
    assert world.pauses == []
    assert world.events == []


def test_each_trouble_is_reported_once_when_it_begins_and_once_when_it_is_over() -> None:
    world = World()
    for _ in range(3):
        world.patience.failed("no")
    world.patience.succeeded()
    world.patience.succeeded()
    for _ in range(3):
        world.patience.failed("again")
    world.patience.succeeded()
    assert world.kinds() == [
        EventKind.WAITING_FOR_SERVER,
        EventKind.CONNECTION_BACK,
        EventKind.CONNECTION_LOST,
        EventKind.CONNECTION_BACK,
    ]
    assert "after 0.7 s" in world.events[3].message


def test_another_reason_for_trouble_that_lasts_is_told_and_each_only_once() -> None:
    """A server that is restarted is refused, unknown and starting in turn: a line a change, not a line an attempt."""
    world = World(limit=60)
    for _ in range(3):
        world.patience.failed("refused")
    world.patience.failed("passing")  # within the first seconds: it may be over at once
    while world.now < 1005:
        world.patience.failed("refused")
    for why in ("unknown", "unknown", "refused", "unknown"):
        world.patience.failed(why)
    world.patience.succeeded()
    assert world.kinds() == [
        EventKind.WAITING_FOR_SERVER,
        EventKind.WAITING_FOR_SERVER,
        EventKind.CONNECTION_BACK,
    ]
    assert "(refused)" in world.events[0].message
    assert "still" in world.events[1].message
    assert "(unknown)" in world.events[1].message


def test_server_that_answers_between_two_losses_is_not_waited_for_anew() -> None:
    world = World()
    for _ in range(4):
        world.patience.failed("refused")
        world.patience.wait_as_asked(ServerRefusedError("WAITING_ROOM", "full", retry_after=1.0))
    assert world.kinds() == [EventKind.WAITING_FOR_SERVER, EventKind.SERVER_BUSY]


def test_broken_call_is_repeated_on_a_new_connection_unless_the_server_itself_broke_it() -> None:
    world = World()
    world.patience.torn(TornCallError("reset"))
    assert (world.renewed, world.pauses) == (1, [0.1])
    world.patience.torn(TornCallError("STARTING", by_server=True))
    assert (world.renewed, world.pauses) == (1, [0.1, 0.2])


def test_server_that_starts_or_drains_is_not_asked_again_before_the_time_that_it_names() -> None:
    world = World()
    world.patience.torn(TornCallError("DRAINING", by_server=True, retry_after=1.0))
    world.patience.torn(TornCallError("STARTING", by_server=True, retry_after=0.05))
    assert world.pauses == [1.0, 0.2]


def test_known_cause_is_told_with_its_fix_at_the_start_and_at_the_end() -> None:
    world = World()
    world.patience.torn(TornCallError("unknown name", fix="check the spelling"))
    world.sleep(10)
    with pytest.raises(ServerUnavailableError, match=r"for 10 s \(unknown name\): check the spelling$"):
        world.patience.torn(TornCallError("unknown name", fix="check the spelling"))
    assert [event.message for event in world.events] == [
        "waiting for a gemps server at server:1 for up to 10 s (unknown name: check the spelling)"
    ]


def test_stranger_is_not_waited_for_but_a_server_that_was_there_is() -> None:
    """What answers in its place for a while may be a proxy whose server is being restarted."""
    stranger = TornCallError("it speaks HTTP", fix="try another port", by_stranger=True)
    world = World()
    with pytest.raises(ServerMisbehavedError, match="server:1: it speaks HTTP; try another port"):
        world.patience.torn(stranger)
    assert world.pauses == []
    world.patience.succeeded()
    world.patience.torn(stranger)
    assert world.kinds() == [EventKind.CONNECTION_LOST]


def test_server_that_asks_to_wait_is_given_its_time_and_a_little_more() -> None:
    world = World(jitter=1.25)
    for _ in range(3):
        world.patience.wait_as_asked(ServerRefusedError("WAITING_ROOM", "full", retry_after=8.0))
    assert world.pauses == [10.0] * 3
    assert world.ranges == {(1.0, 1.25)}
    assert world.kinds() == [EventKind.SERVER_BUSY]


def test_waiting_as_asked_is_bounded_where_wanted() -> None:
    world = World()
    with pytest.raises(ServerUnavailableError, match="full"):
        world.refuse_for_ever("TOO_MANY", "full", bounded=True)
    assert len(world.pauses) == 2


def test_answering_server_ends_a_loss_of_connection() -> None:
    world = World()
    for _ in range(5):
        for _ in range(6):
            world.patience.failed("no")
        world.patience.wait_as_asked(ServerRefusedError("WAITING_ROOM", "full", retry_after=1.0))
    assert world.now > 1020


def test_payload_that_is_damaged_every_time_is_given_up() -> None:
    world = World()
    with pytest.raises(ServerUnavailableError, match="CHECKSUM"):
        world.refuse_for_ever("CHECKSUM", "damaged", bounded=False)


def test_refusal_without_a_hint_is_raised() -> None:
    with pytest.raises(ServerRefusedError, match="BAD_VALUE"):
        World().patience.wait_as_asked(ServerRefusedError("BAD_VALUE", "no"))


def test_time_in_which_the_process_did_not_run_is_no_time_in_which_the_server_was_away() -> None:
    world = World(limit=300.0)
    world.patience.failed("gone")
    world.now += 600.0  # SIGSTOP, and later SIGCONT
    world.patience.failed("restarted meanwhile")  # tries again instead of giving up
    world.patience.succeeded()
    assert world.kinds()[-1] is EventKind.CONNECTION_BACK


def test_a_server_that_stays_away_is_given_up_although_the_process_was_stopped_once() -> None:
    world = World(limit=300.0)
    world.patience.failed("gone")
    world.now += 600.0
    with pytest.raises(ServerUnavailableError):
        world.fail_for_ever()
    assert world.now < 1000.0 + 600.0 + 300.0 + 10.0


def test_worker_of_little_patience_that_was_stopped_tries_once_more_and_only_once() -> None:
    """The longest attempt (120 s) is longer than all its patience."""
    world = World(limit=5.0)
    world.patience.failed("gone")
    world.now += 600.0
    world.patience.failed("restarted meanwhile")
    world.now += 600.0
    with pytest.raises(ServerUnavailableError):
        world.patience.failed("still gone")


def test_pauses_that_are_longer_than_an_attempt_use_up_patience() -> None:
    """They are no time in which the process was stopped."""
    world = World(limit=300.0, progress_timeout=0.1, backoff_first=60.0, backoff_limit=60.0)
    with pytest.raises(ServerUnavailableError, match="for 300 s"):
        world.fail_for_ever()
    assert world.now == 1300.0


@pytest.mark.parametrize("progress_timeout", [1.0, 60.0])
def test_attempts_that_the_watchdog_ended_use_up_patience_however_short_a_silence_it_bears(
    progress_timeout: float,
) -> None:
    """Each takes the silence, and the 20 s of a heartbeat that nobody answers."""
    world = World(limit=300.0, progress_timeout=progress_timeout)
    with pytest.raises(ServerUnavailableError):
        world.fail_for_ever(attempt=progress_timeout + 20.0)
    assert world.now < 1000.0 + 300.0 + 3 * (progress_timeout + 20.0)


def test_patience_without_end_outlasts_a_day_and_a_stop() -> None:
    world = World(limit=float("inf"))
    world.fail_for_ever()
    world.fail_for_ever(attempt=86_400.0)
    assert max(world.pauses) == 2.0
    assert world.events[0].message == "waiting for a gemps server at server:1 for as long as it takes (no)"
