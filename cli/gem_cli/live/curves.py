"""Figures over time."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gem_cli.status_view import Status, state

# HistoryInterval fields and the rate.
RATE = "rate"
NAMES = ("loss", RATE, "staleness_mean", "mean_pi", "blocked_fraction", "clamped_fraction")
# Twice the server's history.
MAX_POINTS = 960


@dataclass(frozen=True, slots=True)
class Point:
    """Means over seconds of training, where known."""

    begins: float
    ends: float
    values: Mapping[str, float]


class Curves:
    """Points over time; merges neighbours at MAX_POINTS. Single-threaded."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def restart(self, history: Mapping[str, Any]) -> None:
        """Replace all by a GetHistoryResponse."""
        self.points = [
            Point(
                interval["begins"],
                interval["ends"],
                _known({name: interval.get(name) for name in NAMES} | {RATE: _rate(interval)}),
            )
            for interval in history.get("intervals", ())
            if interval["ends"] > interval["begins"]
        ]

    def add(self, status: Status) -> None:
        """Append a report if training."""
        ends = float(status.get("run_seconds", 0.0))
        begins = self.points[-1].ends if self.points else 0.0
        if state(status) != "TRAINING" or not status.get("commits_of_process") or ends <= begins:
            return
        values = {name: status.get(name) for name in NAMES}
        values[RATE] = status.get("commits_per_second")
        self.points.append(Point(begins, ends, _known(values)))
        if len(self.points) > MAX_POINTS:
            self._join()

    def columns(self, name: str, count: int) -> list[float | None]:
        """`count` means; None: unknown."""
        if not self.points:
            return [None] * count
        width = self.points[-1].ends / count
        sums, weights = [0.0] * count, [0.0] * count
        for point in self.points:
            value = point.values.get(name)
            if value is None:
                continue
            for column in range(int(point.begins / width), min(count, math.ceil(point.ends / width))):
                overlap = min(point.ends, (column + 1) * width) - max(point.begins, column * width)
                sums[column] += max(0.0, overlap) * value
                weights[column] += max(0.0, overlap)
        return [total / weight if weight > 0 else None for total, weight in zip(sums, weights, strict=True)]

    def _join(self) -> None:
        longest = 4 * self.points[-1].ends / MAX_POINTS
        joined = self.points[:1]
        for point in self.points[1:]:
            if point.ends - joined[-1].begins <= longest:
                joined[-1] = _both(joined[-1], point)
            else:
                joined.append(point)
        self.points = joined


def _rate(interval: Mapping[str, Any]) -> float:
    return float(interval["commits"] / (interval["ends"] - interval["begins"]))


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def _both(earlier: Point, later: Point) -> Point:
    return Point(
        earlier.begins,
        later.ends,
        {name: _mean(name, (earlier, later)) for name in {*earlier.values, *later.values}},
    )


def _mean(name: str, points: Iterable[Point]) -> float:
    known = [(point.ends - point.begins, point.values[name]) for point in points if name in point.values]
    return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)
