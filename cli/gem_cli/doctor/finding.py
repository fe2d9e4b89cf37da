"""What a check found."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """PROBLEM: something will not work; WARNING: it may not be what was meant; OK: neither."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and in the text also what to do about it."""

    check: str
    level: Level
    text: str


def ok(check: str, text: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str) -> Finding:
    """It may not be what was meant."""
    return Finding(check, Level.WARNING, text)


def problem(check: str, text: str) -> Finding:
    """Something will not work."""
    return Finding(check, Level.PROBLEM, text)
