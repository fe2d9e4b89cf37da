"""Display state."""

from dataclasses import dataclass, field

from gem_cli.live.curves import Curves
from gem_cli.live.worker_table import ORDERS
from gem_cli.status_view import Status


@dataclass(slots=True)
class View:
    """Single-threaded. `seen_at` uses the caller's clock."""

    address: str
    interval: float
    status: Status
    seen_at: float
    curves: Curves = field(default_factory=Curves)
    lost: str = ""
    is_over: bool = False
    order: str = next(iter(ORDERS))
    offset: int = 0
    page: int = 1
    helps: bool = False

    def report(self, status: Status, now: float) -> None:
        """Record a report."""
        self.status, self.seen_at, self.lost = status, now, ""
        self.curves.add(status)

    def press(self, key: str) -> None:
        """Handle a key other than "quit"."""
        steps = {"up": -1, "down": 1, "page up": -self.page, "page down": self.page}
        if key in steps:
            self.offset = max(0, self.offset + steps[key])
        elif key == "home":
            self.offset = 0
        elif key == "end":
            self.offset = 1 << 30  # clamped later
        elif key == "help" or self.helps:
            self.helps, self.offset = not self.helps, 0
        elif key == "sort":
            names = list(ORDERS)
            self.order, self.offset = names[(names.index(self.order) + 1) % len(names)], 0

    def scroll(self, lines: int, page: int) -> range:
        """Visible range."""
        self.page = max(1, page)
        self.offset = min(self.offset, max(0, lines - self.page))
        return range(self.offset, min(lines, self.offset + self.page))
