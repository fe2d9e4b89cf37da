"""What the log says of refused callers, on a clock of the test's own."""

import pytest
from gem_server.service.refusal_log import LINE_SECONDS, MAX_NAMES, RefusalLog


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1000.0
        self.log = RefusalLog(lambda: self.now)
        self._caplog = caplog

    def lines(self) -> list[str]:
        """Said since the last time."""
        said = list(self._caplog.messages)
        self._caplog.clear()
        return said


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    return World(caplog)


def test_first_refusal_is_told_at_once_and_others_are_counted(world: World) -> None:
    for _ in range(1000):
        world.log.log("ada", "ada was refused")
    assert world.lines() == ["ada was refused"]
    world.now += LINE_SECONDS
    world.log.log("ada", "ada was refused for another reason")
    assert world.lines() == ["ada was refused for another reason (999 more since the line before)"]


def test_one_caller_that_is_refused_all_the_time_does_not_hide_another(world: World) -> None:
    for _ in range(10):
        world.log.log("ada", "ada was refused")
    world.log.log("bob", "bob was refused")
    assert world.lines() == ["ada was refused", "bob was refused"]


def test_any_number_of_names_is_a_bounded_number_of_lines(world: World) -> None:
    for number in range(50 * MAX_NAMES):
        world.log.log(f"worker-{number}", "refused")
    assert len(world.lines()) == MAX_NAMES + 1
    world.now += LINE_SECONDS
    for number in range(2):
        world.log.log(f"ada-{number}", "refused")
    assert len(world.lines()) == 2
