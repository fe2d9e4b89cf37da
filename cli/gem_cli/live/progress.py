"""Progress through a budget."""

from dataclasses import dataclass

from gem_cli.live.figures import count
from gem_cli.status_view import LIVE, Status, state


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the budget is spent.

    Attributes:
        fraction: 0 to 1; None: unknown.
        seconds_left: the server's estimate; None if the server has no estimate.
        text: in words.
    """

    fraction: float | None
    seconds_left: float | None
    text: str


def progress(status: Status) -> Progress:
    """Most advanced budget.

    A steps budget is per worker.
    """
    budget = status.get("settings", {}).get("budget", {})
    left = status.get("seconds_left")
    found = []
    if total := int(budget.get("commits", 0)):
        found.append(_of(int(status.get("commits", 0)), total, left, " commits"))
    if steps := int(budget.get("steps", 0)):
        workers = [one for one in status.get("workers", ()) if state(one, "state") in LIVE]
        spent = sum(min(steps, int(one.get("commits", 0))) for one in workers)
        found.append(_of(spent, steps * len(workers), left, f", {count(steps, 9)} a worker"))
    if found:
        return max(found, key=lambda one: one.fraction or 0.0)
    if epochs := float(budget.get("epochs", 0.0)):
        return Progress(None, left, f"{epochs:g} epochs a worker")
    return Progress(None, None, "none: it ends when gemps finish says so")


def _of(spent: int, total: int, left: float | None, unit: str) -> Progress:
    fraction = spent / total if total else 0.0
    return Progress(min(1.0, fraction), left, f"{count(spent, 9)} of {count(total, 9)}{unit}")
