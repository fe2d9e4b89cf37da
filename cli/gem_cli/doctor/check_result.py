"""Results of checks."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """PROBLEM: will not work; WARNING: may be unintended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's result, including the fix."""

    check: str
    level: Level
    text: str


def ok(check: str, text: str) -> CheckResult:
    """OK finding."""
    return CheckResult(check, Level.OK, text)


def warning(check: str, text: str) -> CheckResult:
    """Warning."""
    return CheckResult(check, Level.WARNING, text)


def problem(check: str, text: str) -> CheckResult:
    """Problem."""
    return CheckResult(check, Level.PROBLEM, text)
