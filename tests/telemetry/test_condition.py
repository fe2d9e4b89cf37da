"""What is wrong with a worker, in one word."""

from typing import Any

import pytest
from gem_server.telemetry.condition import Condition, condition, median_rate
from gem_server.telemetry.worker_telemetry import WorkerTelemetry

WELL: dict[str, Any] = {
    "has_expired": False,
    "has_session": True,
    "trains": True,
    "silent_for": 1.0,
    "seen": WorkerTelemetry(measured=100),
    "blocked": 0.9,
    "rate": 9.0,
    "median_rate": 10.0,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Condition.WELL),
        ({"has_expired": True, "has_session": False, "trains": False}, Condition.GONE),
        ({"has_session": False, "trains": False}, Condition.DEPARTED),
        ({"trains": False, "silent_for": 100.0, "rate": 0.0}, Condition.WELL),
        ({"silent_for": 10.1, "rate": 0.0}, Condition.SILENT),
        ({"rate": 4.9}, Condition.SLOW),
        ({"rate": 4.9, "median_rate": None}, Condition.WELL),
        ({"rate": 0.0, "seen": WorkerTelemetry()}, Condition.WELL),  # it has only come
        ({"blocked": 0.99}, Condition.MUTED),
        ({"blocked": 0.99, "seen": WorkerTelemetry(measured=19)}, Condition.WELL),
        ({"blocked": None}, Condition.WELL),  # no telemetry
    ],
)
def test_condition(changes: dict[str, Any], expected: Condition) -> None:
    assert condition(**(WELL | changes)) is expected


def test_two_workers_are_too_few_to_be_compared() -> None:
    assert median_rate([1.0, 100.0]) is None
    assert median_rate([1.0, 100.0, 10.0]) == 10.0
