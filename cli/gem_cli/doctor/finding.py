"""Results of checks."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """PROBLEM: will not work; WARNING: may be unintended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result, including the fix."""

    check: str
    level: Level
    text: str


def ok(check: str, text: str) -> Finding:
    """Return an OK finding."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str) -> Finding:
    """Return a warning."""
    return Finding(check, Level.WARNING, text)


def problem(check: str, text: str) -> Finding:
    """Return a problem."""
    return Finding(check, Level.PROBLEM, text)
