"""SVG plots. 400 units keep text readable on phones."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gem_cli.training.report.words import number, safe

WIDTH, HEIGHT = 400.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 9.0, 26.0

_RAMP = ((20, 24, 58), (38, 62, 124), (30, 108, 148), (40, 152, 146), (112, 190, 118), (196, 216, 102), (253, 240, 170))
SHADES = 25

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Curve:
    """Curve; None makes a gap."""

    label: str
    colour: str
    points: Sequence[Point]
    dots: bool = False

    @property
    def known(self) -> list[tuple[float, float]]:
        """Points with values."""
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y)]


def line_chart(
    about: str,
    curves: Iterable[Curve],
    *,
    end: float,
    from_zero: bool = True,
    most: float | None = None,
    is_time: bool = True,
) -> str:
    """Curves, or "" without points.

    Axes reach `end`, in seconds if `is_time`, and `most`. Without `from_zero` values may be logarithmic.
    """
    shown = [curve for curve in curves if curve.known]
    values = [y for curve in shown for _, y in curve.known]
    if not values:
        return ""
    scale = _Scale.over([*values, *([0.0] if from_zero else []), *([] if most is None else [most])], from_zero)
    end = max([end, *(x for curve in shown for x, _ in curve.known)]) or 1.0
    across = WIDTH - _LEFT - _RIGHT

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + across * point[0] / end, scale.place(point[1])

    parts = [*_value_axis(scale), *_horizontal_axis(end, across, *(_time_unit if is_time else _count_unit)(end))]
    for curve in shown:
        parts.append(f'<path class="line {curve.colour}" d="{_path(curve.points, place)}"/>')
        if curve.dots or len(curve.known) == 1:
            dots = (place(point) for point in curve.known)
            parts += [f'<circle class="dot {curve.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in dots]
    last = ", ".join(f"{curve.label} ends at {number(curve.known[-1][1])}" for curve in shown)
    return _legend(shown) + _svg(f"{about}: {last}", parts)


def histogram(about: str, labels: Sequence[str], counts: Sequence[int]) -> str:
    """Columns for the nonzero range."""
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return ""
    first, last = filled[0], max(filled[-1], filled[0] + 5)
    shown = list(zip(labels, counts, strict=True))[first : last + 1]
    scale = _Scale.over([0.0, *(float(count) for _, count in shown)], from_zero=True)
    step = (WIDTH - _LEFT - _RIGHT) / len(shown)
    parts = _value_axis(scale)
    for index, (label, count) in enumerate(shown):
        x, top = _LEFT + index * step, scale.place(float(count))
        bar = f'x="{x + 1:.1f}" y="{top:.1f}" width="{step - 2:.1f}" height="{HEIGHT - _BOTTOM - top:.1f}"'
        parts.append(f'<rect class="bar" {bar}><title>{safe(label)}: {count:,}</title></rect>')
        if index % math.ceil(len(shown) / 8) == 0:
            parts.append(f'<text class="middle" x="{x + step / 2:.1f}" y="{HEIGHT - 8}">{safe(label)}</text>')
    return _svg(about, parts)


def strip(cells: Sequence[tuple[float, float, float | None]], end: float) -> str:
    """Heat map row of (begin, end, value from 0 to 1 or None)."""
    joined: list[tuple[float, float, int]] = []
    for begins, ends, part in cells:
        if part is None:
            continue
        shade = min(SHADES - 1, max(0, int(part * SHADES)))
        if joined and joined[-1][2] == shade and joined[-1][1] == begins:
            joined[-1] = (joined[-1][0], ends, shade)
        else:
            joined.append((begins, ends, shade))
    rects = "".join(
        f'<rect class="s{shade}" x="{1000 * begins / end:.1f}" width="{1000 * (ends - begins) / end:.1f}" height="1"/>'
        for begins, ends, shade in joined
    )
    return f'<svg class="strip" viewBox="0 0 1000 1" preserveAspectRatio="none" aria-hidden="true">{rects}</svg>'


def shades() -> str:
    """CSS."""
    return "".join(f".s{index}{{fill:{_shade(index / (SHADES - 1))}}}" for index in range(SHADES))


def ramp() -> str:
    """Legend."""
    return strip([(float(index), index + 1.0, index / SHADES) for index in range(SHADES)], float(SHADES))


@dataclass(frozen=True, slots=True)
class _Scale:
    least: float
    most: float
    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    @classmethod
    def over(cls, values: Sequence[float], from_zero: bool) -> "_Scale":
        least, most = min(values), max(values)
        if not from_zero and least > 0 and most > 20 * least:
            low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
            every = max(1, math.ceil((high - low) / 5))
            return cls(10.0**low, 10.0**high, tuple(10.0**power for power in range(low, high + 1, every)), True)
        step = _step((most - least or abs(most) or 1.0) / 4)
        low, high = math.floor(least / step), math.ceil(most / step - 1e-9)
        high = max(high, low + 1)
        return cls(low * step, high * step, tuple(index * step for index in range(low, high + 1)))

    def place(self, value: float) -> float:
        part = (
            math.log(value / self.least) / math.log(self.most / self.least)
            if self.is_logarithmic
            else (value - self.least) / (self.most - self.least)
        )
        return HEIGHT - _BOTTOM - part * (HEIGHT - _BOTTOM - _TOP)


def _step(wanted: float) -> float:
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))


def _value_axis(scale: _Scale) -> list[str]:
    parts = []
    for tick in scale.ticks:
        y = scale.place(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{_plain(tick)}</text>')
    return parts


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1.0, " s") if seconds < 180 else (60.0, " min") if seconds < 180 * 60 else (3600.0, " h")


def _count_unit(count: float) -> tuple[float, str]:
    return (1.0, "") if count < 10_000 else (1e3, " k") if count < 1e7 else (1e6, " M")


def _horizontal_axis(end: float, across: float, unit: float, name: str) -> list[str]:
    step = _step(end / unit / 7)
    count = int(end / unit / step + 1e-9)
    parts = []
    for index in range(count + 1):
        x = _LEFT + across * index * step * unit / end
        text = _plain(index * step) + (name if index == count else "")
        side = "end" if index == count and x > WIDTH - 30 else "middle"
        parts.append(f'<text class="{side}" x="{min(x, WIDTH - 1):.1f}" y="{HEIGHT - 8}">{text}</text>')
    return parts


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _path(points: Sequence[Point], place: Callable[[tuple[float, float]], tuple[float, float]]) -> str:
    parts, is_down = [], False
    for x, y in points:
        if y is None or not math.isfinite(y):
            is_down = False
            continue
        across, down = place((x, y))
        parts.append(f"{'L' if is_down else 'M'}{across:.1f} {down:.1f}")
        is_down = True
    return "".join(parts)


def _legend(curves: Sequence[Curve]) -> str:
    entries = (f'<span><i class="key {curve.colour}"></i>{safe(curve.label)}</span>' for curve in curves)
    return f'<p class="legend">{"".join(entries)}</p>'


def _svg(about: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{safe(about)}">'
        f"{''.join(parts)}</svg>"
    )


def _shade(part: float) -> str:
    place = part * (len(_RAMP) - 1)
    below = min(int(place), len(_RAMP) - 2)
    mixed = (
        round(low + (place - below) * (high - low)) for low, high in zip(_RAMP[below], _RAMP[below + 1], strict=True)
    )
    return "#" + "".join(f"{value:02x}" for value in mixed)
