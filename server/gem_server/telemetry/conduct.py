"""Notices workers whose commits add nothing. The result is only displayed.

A worker that commits the same bytes again and again, under new sequences, repeats one gradient, or replays old ones. A
worker whose losses are mostly not finite trains on broken data, or its copy of the model does not compute.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from gem_server.telemetry.recent_commits import RecentCommits

# Contents that a new one is compared with.
COMPARED = 8


class Habit(Enum):
    """What people should look at: the `kind` of a problem (status.proto), its `text` about workers, and its `fix`."""

    SAME_DELTAS = (
        "same-deltas",
        "the same deltas come again and again, under new sequences",
        "check that each step computes a new gradient from the next batch",
    )
    LOSSES_NOT_FINITE = (
        "losses-not-finite",
        "most losses are infinite or NaN",
        "check the data, and lower the learning rate if all workers have them",
    )

    def __init__(self, kind: str, text: str, fix: str) -> None:
        self.kind = kind
        self.text = text
        self.fix = fix


@dataclass(slots=True)
class Conduct:
    """One worker's last commits: their contents, and which of them were repeats, or had a loss that is not finite."""

    contents: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=COMPARED))
    repeats: RecentCommits = field(default_factory=RecentCommits)
    bad_losses: RecentCommits = field(default_factory=RecentCommits)

    def committed(self, content: tuple[int, ...], *, is_zero: bool, is_loss_finite: bool | None) -> None:
        """Take an applied commit.

        Args:
            content: what identifies its bytes, such as size and checksum.
            is_zero: whether its delta is 0. Such deltas are equal, but repeat nothing.
            is_loss_finite: None: it has no loss.
        """
        self.repeats.record(is_of_kind=not is_zero and content in self.contents)
        self.contents.append(content)
        if is_loss_finite is not None:
            self.bad_losses.record(is_of_kind=not is_loss_finite)

    @property
    def habits(self) -> list[Habit]:
        """Return the habits that the worker's last commits show."""
        found = []
        if self.repeats.is_habit:
            found.append(Habit.SAME_DELTAS)
        if self.bad_losses.is_habit:
            found.append(Habit.LOSSES_NOT_FINITE)
        return found
