"""What is shown: the newest report, the curves, and what the keys chose."""

from dataclasses import dataclass, field

from gem_cli.status_view import Status
from gem_cli.top.curves import Curves
from gem_cli.top.worker_table import ORDERS


@dataclass(slots=True)
class View:
    """For one thread. `seen_at` is on the caller's clock, in seconds."""

    address: str
    interval: float
    status: Status
    seen_at: float
    curves: Curves = field(default_factory=Curves)
    lost: str = ""  # why the server does not answer
    is_over: bool = False  # the run is finished and everybody has left
    order: str = next(iter(ORDERS))
    offset: int = 0  # the first worker that is shown, or line of the help
    page: int = 1  # how many of them fit, as of the last frame
    helps: bool = False

    def report(self, status: Status, now: float) -> None:
        """Take a report of the server."""
        self.status, self.seen_at, self.lost = status, now, ""
        self.curves.add(status)

    def press(self, key: str) -> None:
        """Take a key but for "quit"."""
        steps = {"up": -1, "down": 1, "page up": -self.page, "page down": self.page}
        if key in steps:
            self.offset = max(0, self.offset + steps[key])
        elif key == "home":
            self.offset = 0
        elif key == "end":
            self.offset = 1 << 30  # the next frame makes it the last page
        elif key == "help" or self.helps:
            self.helps, self.offset = not self.helps, 0
        elif key == "sort":
            names = list(ORDERS)
            self.order, self.offset = names[(names.index(self.order) + 1) % len(names)], 0

    def scroll(self, lines: int, page: int) -> range:
        """Return which of so many lines are shown where `page` of them fit."""
        self.page = max(1, page)
        self.offset = min(self.offset, max(0, lines - self.page))
        return range(self.offset, min(lines, self.offset + self.page))
