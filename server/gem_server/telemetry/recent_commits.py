"""How many of a worker's last commits were of some kind."""

from dataclasses import dataclass

# Commits that are remembered, one bit each. Half of them make a habit.
REMEMBERED = 40
HABIT = REMEMBERED // 2

_ALL = (1 << REMEMBERED) - 1


@dataclass(slots=True)
class RecentCommits:
    """Which of the last REMEMBERED commits were of a kind: the newest is bit 0."""

    bits: int = 0

    def record(self, *, is_of_kind: bool) -> None:
        """Record whether the next commit is of the kind."""
        self.bits = (self.bits << 1 | is_of_kind) & _ALL

    @property
    def is_habit(self) -> bool:
        """Whether at least HABIT of them were of the kind."""
        return self.bits.bit_count() >= HABIT
