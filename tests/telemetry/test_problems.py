"""Which states of a server are problems, since when, and what the log says of them."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gem_server.errors import Reason
from gem_server.telemetry.conduct import Habit
from gem_server.telemetry.problems import (
    DAY_SECONDS,
    FEW_REFUSALS,
    GONE_SECONDS,
    KINDS,
    LOG_SECONDS,
    MOST_NAMES,
    MOST_PROBLEMS,
    MOST_QUOTED,
    NORMAL_REASONS,
    CheckpointFacts,
    DiskFacts,
    Facts,
    LogRoomFacts,
    Problems,
    WorkerFacts,
)
from gem_server.telemetry.refusals import WINDOW_SECONDS, Refusals, Refused

MIB = 1 << 20
WELL = Facts(
    has_parameters=True,
    clock=100,
    checkpoints=CheckpointFacts(newest=100, interval=60.0),
    disk=DiskFacts(place="/data", free=1000 * MIB, reserved=0, checkpoint=10 * MIB),
    expiries={"tls.cert": 90 * DAY_SECONDS},
    commits=99,
    usual_gap=0.1,
    memory_bytes=MIB,
    memory_total=1000 * MIB,
)


class Seen:
    """A list of problems on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.problems = Problems(lambda: self.now)

    def after(self, seconds: float, facts: Facts) -> list[tuple[str, str]]:
        """Looks every two seconds, and returns kinds and severities at the end."""
        end = self.now + seconds
        self.problems.look(facts)
        while self.now < end:
            self.now = min(end, self.now + 2)
            self.problems.look(facts)
        return [(one.finding.kind, one.finding.severity.name.lower()) for one in self.problems.newest]


def well_but(**changes: Any) -> Facts:
    fields = {name: getattr(WELL, name) for name in Facts.__dataclass_fields__}
    return Facts(**(fields | changes))


def worker(name: str = "w", **changes: Any) -> WorkerFacts:
    well: dict[str, Any] = {"trains": True, "silent_for": 1.0, "usual_gap": 0.5, "expired_for": None}
    return WorkerFacts(name=name, **(well | changes))


def disk(free: int, reserved: int = 0) -> dict[str, Any]:
    return {"disk": DiskFacts(place="/data", free=free * MIB, reserved=reserved * MIB, checkpoint=10 * MIB)}


def checkpoints(newest: int | None, error: str = "", interval: float = 60.0) -> dict[str, Any]:
    return {"checkpoints": CheckpointFacts(newest=newest, interval=interval, error=error)}


def log_room(refused_ago: float, stands_for: float) -> dict[str, Any]:
    return {"log_room": LogRoomFacts(refused_ago=refused_ago, stands_for=stands_for)}


TRAINING = {"workers": [worker()]}
FULL = "No space left on device"
REFUSED = {"BAD_VALUE": Refused(FEW_REFUSALS + 1, "not finite")}


@pytest.mark.parametrize(
    ("changes", "after", "expected"),
    [
        ({}, 3600, []),
        (checkpoints(None), 58, []),
        (checkpoints(None), 60, ["first-checkpoint warning"]),
        (checkpoints(None) | {"has_parameters": False}, 3600, []),
        (checkpoints(None, FULL), 0, ["checkpoint-failed critical"]),
        (checkpoints(100, FULL), 0, ["checkpoint-failed warning"]),
        (checkpoints(99), 178, []),
        (checkpoints(99), 180, ["checkpoint-old warning"]),
        (checkpoints(99, interval=1.0), 28, []),  # a checkpoint may take as long to write
        (checkpoints(99, interval=0.0), 3600, []),
        (disk(20), 0, []),
        (disk(19), 0, ["disk-space warning"]),
        (disk(9), 0, ["disk-space critical"]),
        (disk(1, reserved=10), 0, ["disk-space warning"]),  # the log has kept room for one
        (log_room(1.0, 29.0), 0, ["log-room warning"]),
        (log_room(1.0, 30.0), 0, ["log-room critical"]),
        (log_room(11.0, 30.0), 0, []),
        ({"expiries": {"tls.cert": 29.9 * DAY_SECONDS}}, 0, ["certificate warning"]),
        ({"expiries": {"tls.client_ca": 6.9 * DAY_SECONDS}}, 0, ["certificate critical"]),
        ({"expiries": {"tls.cert": -1.0}}, 0, ["certificate critical"]),
        ({"reload_errors": {"tls.tokens": "line 3: no role"}}, 0, ["reload-failed warning"]),
        ({"workers": [worker(silent_for=9.9)]}, 0, []),
        ({"workers": [worker(silent_for=10.1)]}, 0, ["silent-workers warning"]),
        ({"workers": [worker(silent_for=10.1, usual_gap=5.0)]}, 0, []),  # its steps are long
        ({"workers": [worker(silent_for=15.1, usual_gap=5.0)]}, 0, ["silent-workers warning"]),
        ({"workers": [worker(silent_for=44.9, usual_gap=900.0)]}, 0, []),
        ({"workers": [worker(silent_for=45.1, usual_gap=900.0)]}, 0, ["silent-workers warning"]),  # not a heartbeat
        ({"workers": [worker(silent_for=99.0, trains=False)]}, 0, []),
        ({"workers": [worker(trains=False, expired_for=GONE_SECONDS)]}, 0, ["gone-workers warning"]),
        ({"workers": [worker(trains=False, expired_for=GONE_SECONDS + 1)]}, 0, []),
        ({"workers": [worker(trains=False, expired_for=1.0)], "is_finished": True}, 0, []),
        ({"workers": [worker(quarantined=True)]}, 0, ["quarantined warning"]),
        ({"workers": [worker(habits=[*Habit])]}, 0, ["same-deltas warning", "losses-not-finite warning"]),
        (TRAINING, 58, []),
        (TRAINING, 60, ["no-commits critical"]),
        (TRAINING | {"usual_gap": 10.0}, 198, []),
        (TRAINING | {"usual_gap": 10.0}, 200, ["no-commits critical"]),
        (TRAINING | {"commits": 0, "usual_gap": None}, 598, []),
        (TRAINING | {"commits": 0, "usual_gap": None}, 600, ["no-commits critical"]),
        (TRAINING | {"is_finished": True}, 3600, []),
        ({"workers": [worker(trains=False)]}, 3600, []),
        ({"refused": REFUSED}, 0, ["refusals warning"]),
        ({"refused": {"BAD_VALUE": Refused(FEW_REFUSALS, "not finite")}}, 0, []),
        ({"refused": {"STALE_BASE": Refused(1000, "pull")}}, 0, []),
        ({"memory_bytes": 840 * MIB}, 0, []),
        ({"memory_bytes": 850 * MIB}, 0, ["memory warning"]),
        ({"memory_bytes": 950 * MIB}, 0, ["memory critical"]),
        ({"waits_for": "2 of 4 are there"}, 118, []),
        ({"waits_for": "2 of 4 are there"}, 120, ["missing-workers warning"]),
        ({"same_batches": [["a", "b"], ["c", "d"]]}, 0, ["same-batches warning"] * 2),
    ],
)
def test_problems_of_a_state(changes: dict[str, Any], after: float, expected: Sequence[str]) -> None:
    assert [f"{kind} {severity}" for kind, severity in Seen().after(after, well_but(**changes))] == expected


def test_every_problem_says_what_has_happened_and_what_to_do() -> None:
    seen = Seen()
    everything = well_but(
        **checkpoints(99, FULL),
        **disk(1),
        **log_room(0.0, 0.0),
        expiries={"tls.cert": 0.0},
        reload_errors={"tls.tokens": "empty"},
        workers=[
            worker(silent_for=99.0, quarantined=True, habits=[*Habit]),
            worker("v", trains=False, expired_for=9.0),
        ],
        refused=REFUSED,
        memory_bytes=999 * MIB,
        same_batches=[["a", "b"]],
    )
    kinds = {kind for kind, _ in seen.after(200, everything)}
    assert kinds == {*KINDS} - {"first-checkpoint", "missing-workers"}
    for problem in seen.problems.newest:
        found = problem.finding
        assert found.text
        assert found.fix
        assert not found.text.endswith(".")
        assert not found.fix.endswith(".")
    severities = [one.finding.severity for one in seen.problems.newest]
    assert severities == sorted(severities, reverse=True)


def test_every_kind_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "watching.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"| `{kind}` |" not in page] == []


def test_a_problem_goes_with_its_cause_and_begins_anew() -> None:
    seen = Seen()
    began = seen.now
    assert seen.after(10, well_but(**disk(1)))
    assert seen.problems.newest[0].since == began
    assert not seen.after(2, WELL)
    assert seen.after(2, well_but(**disk(1)))
    assert seen.problems.newest[0].since == began + 12


def test_a_commit_or_a_checkpoint_begins_the_wait_anew() -> None:
    seen = Seen()
    assert not seen.after(58, well_but(workers=[worker()], commits=99))
    assert not seen.after(58, well_but(workers=[worker()], commits=100))
    seen = Seen()
    assert not seen.after(170, well_but(**checkpoints(98)))
    assert not seen.after(170, well_but(**checkpoints(99)))


def test_the_list_its_names_and_what_it_quotes_are_bounded() -> None:
    seen = Seen()
    many = [worker(f"w{number}", silent_for=99.0) for number in range(1000)]
    refused = {f"REASON_{number}": Refused(99, "x\n" * 10_000) for number in range(100)}
    seen.after(0, well_but(workers=many, refused=refused))
    assert 10 < len(seen.problems.newest) <= MOST_PROBLEMS
    for problem in seen.problems.newest:
        assert len(problem.finding.workers) <= MOST_NAMES
        assert len(problem.finding.text) < MOST_QUOTED + 200
        assert "\n" not in problem.finding.text
    assert "1000 workers" in seen.problems.newest[0].finding.text


def test_the_log_tells_beginning_and_end_once_and_not_more_often_than_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    seen = Seen()
    seen.after(60, well_but(**disk(1)))
    seen.after(60, WELL)
    assert [(record.event, record.problem, record.levelname) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("problem", "disk-space", "ERROR"),
        ("problem-over", "disk-space", "INFO"),
    ]
    assert "/data" in caplog.text
    assert ". Free some room" in caplog.text
    caplog.clear()
    for _ in range(30):
        seen.after(2, well_but(**disk(1)))
        seen.after(2, WELL)
    assert 1 <= len(caplog.records) <= 120 / LOG_SECONDS


def test_a_problem_that_gets_worse_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    seen.after(20, well_but(**disk(19)))
    seen.after(20, well_but(**disk(1)))
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_normal_reasons_are_not_the_callers_fault() -> None:
    faults = {reason.name: reason.fault.name for reason in Reason}
    assert "CALLER" not in {faults[name] for name in NORMAL_REASONS}


def test_refusals_are_counted_for_a_minute() -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    for second in range(5):
        now = float(second)
        refusals.count("BAD_VALUE", f"number {second}")
    refusals.count("ROLE", "an observer")
    assert refusals.of_last_minute() == {"BAD_VALUE": Refused(5, "number 4"), "ROLE": Refused(1, "an observer")}
    now = WINDOW_SECONDS + 2.5
    assert refusals.of_last_minute() == {"BAD_VALUE": Refused(2, "number 4"), "ROLE": Refused(1, "an observer")}
    now = 2 * WINDOW_SECONDS
    assert refusals.of_last_minute() == {}
