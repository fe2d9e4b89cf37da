"""The table of all runs, and the goals, which were set before the runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.time_to_loss.worlds import WORLDS

Runs = Sequence[Mapping[str, Any]]
OURS = "gemps"
# In a world: the seconds of the fastest contender that is not gemps over those of gemps without any option.
GOALS = {"equal": 1.0, "slow-worker": 5.0, "slow-network": 8.0, "failures": 4.0, "all-together": 5.0}
GOODPUT = 0.95


def table(runs: Runs) -> str:
    """Markdown: seconds of a contender in a world: median, lowest and highest; megabytes of all hosts: median."""
    worlds = [world for world in WORLDS if any(one["world"] == world for one in runs)]
    lines = [f"| contender | {' | '.join(worlds)} |", "|---" * (len(worlds) + 1) + "|"]
    for contender in dict.fromkeys(one["contender"] for one in runs):
        cells = (_cell(_of(runs, world, contender)) for world in worlds)
        lines.append(f"| {contender} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(runs: Runs) -> str:
    """Markdown for the README: median seconds of gemps and of the fastest other in each world, which is named."""
    worlds = [world for world in WORLDS if any(one["world"] == world for one in runs)]
    mine, fastest = [], []
    for world in worlds:
        mine.append(_short(median_seconds(_of(runs, world, OURS))))
        others = _others(runs, world)
        name = min(others, key=others.__getitem__, default=None)
        fastest.append("not reached" if name is None else f"{_short(others[name])} ({name})")
    return "\n".join(
        [
            f"| seconds to the same loss | {' | '.join(worlds)} |",
            "|---" * (len(worlds) + 1) + "|",
            f"| gemps, without any option | {' | '.join(mine)} |",
            f"| the fastest other | {' | '.join(fastest)} |",
        ]
    )


def _short(seconds: float | None) -> str:
    return "not reached" if seconds is None else f"{seconds:.0f}"


def compared(runs: Runs, world: str) -> set[str]:
    """Contenders of a world that its goal compares: gemps without any option, and the fastest other."""
    others = _others(runs, world)
    return {OURS, *([min(others, key=others.__getitem__)] if others else [])}


def judged(runs: Runs) -> Iterable[str]:
    """A line for each goal."""
    for world, goal in GOALS.items():
        mine, others = _of(runs, world, OURS), _others(runs, world)
        if not mine or not any(one["world"] == world and not _is_gemps(one["contender"]) for one in runs):
            yield f"{world}: not decided"
            continue
        seconds = median_seconds(mine)
        if seconds is None:
            yield f"{world}: {OURS} did not reach the target: missed"
            continue
        if not others:
            yield f"{world}: {OURS} {seconds:.1f} s; no other reached the target: met"
            continue
        fastest = min(others, key=others.__getitem__)
        ratio = others[fastest] / seconds
        yield f"{world}: {fastest} / {OURS}: {ratio:.2f}, goal {goal:.2f}: {'met' if ratio >= goal else 'missed'}"


def _is_gemps(contender: str) -> bool:
    return contender.startswith(OURS)


def _others(runs: Runs, world: str) -> dict[str, float]:
    """Median seconds of contenders that are not gemps, where they reached the target."""
    names = {one["contender"] for one in runs if not _is_gemps(one["contender"])}
    medians = {name: median_seconds(_of(runs, world, name)) for name in names}
    return {name: seconds for name, seconds in medians.items() if seconds is not None}


def judged_goodput(runs: Runs) -> Iterable[str]:
    """A line for each contender of goodput.py."""
    for name in dict.fromkeys(one["contender"] for one in runs):
        found = [one for one in runs if one["contender"] == name]
        shares = [one["steps"] / one["free"] for one in found]
        failures, seconds = sum(one["failures"] for one in found), sum(one["seconds"] for one in found)
        share = statistics.median(shares)
        spread = f" ({min(shares):.3f} to {max(shares):.3f})" if len(shares) > 1 else ""
        line = f"{name}: {share:.3f}{spread}; {failures} failures in {seconds:g} s"
        if name.startswith("gemps"):
            line += f", goal {GOODPUT}: {'met' if share >= GOODPUT else 'missed'}"
        yield line


def median_seconds(runs: Runs) -> float | None:
    """None: no run, or half of them did not reach the target."""
    seconds = statistics.median(_seconds(runs)) if runs else float("inf")
    return None if seconds == float("inf") else seconds


def _of(runs: Runs, world: str, contender: str) -> Runs:
    return [one for one in runs if one["world"] == world and one["contender"] == contender]


def _seconds(runs: Runs) -> list[float]:
    return [float("inf") if one["seconds"] is None else one["seconds"] for one in runs]


def _cell(runs: Runs) -> str:
    if not runs:
        return ""
    seconds, reached = _seconds(runs), sum(one["seconds"] is not None for one in runs)
    megabytes = statistics.median(one["sent"] for one in runs) / 1e6
    if (median := median_seconds(runs)) is None:
        ends = [one["curve"][-1] for one in runs if one["curve"]]
        at, last = (statistics.median(values) for values in zip(*ends, strict=True)) if ends else (0.0, float("nan"))
        return f"{reached} of {len(runs)}; loss {last:.2f} at {at:.0f} s; {megabytes:.0f} MB"
    highest = f"{max(seconds):.1f}" if reached == len(runs) else "not reached"
    spread = f" ({min(seconds):.1f} to {highest})" if len(runs) > 1 else ""
    return f"{median:.1f} s{spread}; {megabytes:.0f} MB"
