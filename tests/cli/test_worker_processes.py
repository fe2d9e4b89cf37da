"""Which workers are started again, when, and how often: real processes, on the test's clock."""

import signal
from pathlib import Path

import pytest
from gem_cli.training.children import Child
from gem_cli.training.worker_processes import PAUSES, STABLE_SECONDS, WorkerProcesses, was_killed

from tests.waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


class Group:
    """Workers that fail at once."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.clock = Clock()
        self.folder = folder
        self.processes = WorkerProcesses(self.start, self.clock)
        self.processes.start_all(count)

    def start(self, index: int) -> Child:
        log = self.folder / f"worker-{index}.log"
        command = ["sh", "-c", "echo failed; exit 3"]
        return Child(f"worker-{index}", command, log, environment={}, orphan_signal=signal.SIGKILL)

    def wait_for_end(self, index: int = 0) -> None:
        assert eventually(self.processes.ended) == [index]

    def start_again(self, after: float) -> None:
        self.clock.now += after
        self.processes.start_due()


def test_a_lost_worker_is_started_again_after_pauses_that_grow_and_then_given_up(tmp_path: Path) -> None:
    group = Group(tmp_path)
    for number, pause in enumerate(PAUSES, 1):
        group.wait_for_end()
        assert group.processes.schedule_restart(0) == pause
        assert group.processes.count_active == 1  # it will run again
        group.start_again(pause - 0.01)
        assert group.processes.ended() == []
        group.start_again(0.01)
        assert group.processes.restarts == {"worker-0": number}
    group.wait_for_end()
    assert group.processes.schedule_restart(0) is None
    assert group.processes.count_active == 0
    assert sorted(PAUSES) == list(PAUSES)


def test_a_worker_that_ran_for_long_has_all_its_attempts_again(tmp_path: Path) -> None:
    group = Group(tmp_path)
    for _ in range(2 * len(PAUSES)):
        group.wait_for_end()
        group.clock.now += STABLE_SECONDS
        assert group.processes.schedule_restart(0) == PAUSES[0]
        group.start_again(PAUSES[0])
    assert group.processes.restarts == {"worker-0": 2 * len(PAUSES)}


def test_a_restart_that_was_cancelled_does_not_happen(tmp_path: Path) -> None:
    group = Group(tmp_path, 2)
    ended: set[int] = set()
    eventually(lambda: len(ended.update(group.processes.ended()) or ended) == 2)
    assert group.processes.schedule_restart(1) is not None
    assert group.processes.cancel_restarts() == [1]
    assert group.processes.count_active == 0
    group.start_again(1e6)
    assert group.processes.restarts == {}


def test_the_log_of_a_worker_that_was_started_again_is_quoted_from_its_own_start(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.wait_for_end()
    assert group.processes.schedule_restart(0) is not None
    group.start_again(PAUSES[0])
    group.wait_for_end()
    assert group.processes.children[0].last_lines() == ["failed"]
    assert (tmp_path / "worker-0.log").read_text(encoding="utf-8") == "failed\nfailed\n"


@pytest.mark.parametrize(
    ("exit_code", "expected"), [(0, False), (1, False), (2, False), (-9, True), (-11, True), (137, True)]
)
def test_a_shell_tells_of_a_signal_by_its_exit_code(exit_code: int, expected: bool) -> None:
    assert was_killed(exit_code) is expected
