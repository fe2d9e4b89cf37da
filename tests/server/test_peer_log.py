"""Log lines that peers cause: few are written, the others are counted and summed up, on a clock of the test's own."""

import pytest
from gem_server.peer_log import A_MINUTE, AT_ONCE, EACH, REFUSALS, WINDOW_SECONDS, PeerLog


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self.now = 1000.0
        self.log = PeerLog(lambda: self.now)
        self._caplog = caplog

    def joins(self, name: str) -> None:
        self.log.log("joined", name, f"worker {name} joined", worker=name)

    def lines(self) -> list[str]:
        """Said since the last time."""
        said = list(self._caplog.messages)
        self._caplog.clear()
        return said

    def next_minute(self) -> None:
        self.now += WINDOW_SECONDS
        self.log.tick()


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    return World(caplog)


def test_first_refusal_is_told_at_once_and_the_others_are_summed_up_after_a_minute(world: World) -> None:
    for number in range(1000):
        world.log.refuse("ada", f"ada was refused, {number}")
    assert world.lines() == ["ada was refused, 0"]
    world.next_minute()
    (line,) = world.lines()
    assert line == "999 more lines of this kind (refused) were left out; the last: ada was refused, 999"
    world.next_minute()
    assert world.lines() == []
    world.log.refuse("ada", "ada was refused again")
    assert world.lines() == ["ada was refused again"]


def test_one_caller_that_is_refused_all_the_time_does_not_hide_another(world: World) -> None:
    for _ in range(10):
        world.log.refuse("ada", "ada was refused")
    world.log.refuse("bob", "bob was refused")
    assert world.lines() == ["ada was refused", "bob was refused"]


def test_any_number_of_names_is_a_bounded_number_of_refusals(world: World) -> None:
    for number in range(50 * REFUSALS):
        world.log.refuse(f"worker-{number}", "refused")
    assert len(world.lines()) == REFUSALS
    world.next_minute()
    (line,) = world.lines()
    assert line.startswith(f"{49 * REFUSALS} more lines")
    for number in range(2):
        world.log.refuse(f"ada-{number}", "refused")
    assert len(world.lines()) == 2


def test_a_fleet_that_starts_and_ends_at_once_is_logged_completely(world: World) -> None:
    for event in ("joined", "left"):
        for number in range(1000):
            world.log.log(event, f"worker-{number}", f"worker {number} {event}")
    assert len(world.lines()) == 2000
    world.next_minute()
    assert world.lines() == []


def test_a_worker_that_comes_and_goes_has_a_few_lines_a_minute(world: World) -> None:
    for _ in range(1000):
        world.joins("ada")
    world.joins("bob")
    assert world.lines() == [*["worker ada joined"] * EACH, "worker bob joined"]
    world.next_minute()
    assert world.lines() == [
        f"{1000 - EACH} more lines of this kind (joined) were left out; the last: worker ada joined"
    ]


def test_an_hour_of_joins_under_ever_new_names_is_a_bounded_number_of_lines_and_none_is_uncounted(world: World) -> None:
    for second in range(3600):
        for number in range(5):
            world.joins(f"w{second}-{number}")
        world.now += 1
        world.log.tick()
    world.next_minute()
    lines = world.lines()
    sums = [int(line.partition(" ")[0]) for line in lines if "left out" in line]
    written = len(lines) - len(sums)
    assert written + sum(sums) == 5 * 3600
    assert written <= AT_ONCE + 60 * A_MINUTE
    assert len(sums) <= 61


def test_joins_do_not_hide_refusals(world: World) -> None:
    for number in range(2 * AT_ONCE):
        world.joins(f"w{number}")
    world.lines()
    world.log.refuse("ada", "ada was refused")
    assert world.lines() == ["ada was refused"]


def test_fields_and_tracebacks_of_a_line_are_kept(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.log.log("failed", "x", "a call failed", error=ValueError("why"), shard=2)
    (record,) = caplog.records
    assert (record.__dict__["event"], record.__dict__["shard"]) == ("failed", 2)
    assert "ValueError: why" in caplog.text
