"""The table of all runs, and the goals, which were set before the runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.time_to_loss.worlds import WORLDS

Runs = Sequence[Mapping[str, Any]]
BASELINE = "ddp"


@dataclass(frozen=True)
class Goal:
    """In a world: the seconds of `against` over those of the fastest gemps are at least `ratio`."""

    world: str
    ratio: float
    against: str = BASELINE


FASTEST_OTHER = "the fastest other"
# In the world "slow-network": bytes until the target, of float32 at every step over those of the leanest gemps.
BYTES_WORLD, BYTES_BASELINE, BYTES_RATIO = "slow-network", "gemps-averaged-rms", 20.0
GOALS = (
    Goal("equal", 1 / 1.3),
    Goal("slow-worker", 2.0),
    Goal("slow-network", 10.0),
    Goal("all-together", 5.0, FASTEST_OTHER),
)
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
    """Markdown: median seconds in each world of contenders with several; the fastest in the first world first."""
    worlds = [world for world in WORLDS if any(one["world"] == world for one in runs)]
    lines = [f"| seconds to the same loss | {' | '.join(worlds)} |", "|---" * (len(worlds) + 1) + "|"]
    names = {
        one["contender"]: median_seconds(_of(runs, worlds[0], one["contender"]))
        for one in runs
        if any(other["contender"] == one["contender"] and other["world"] != one["world"] for other in runs)
    }
    for name in sorted(names, key=lambda name: names[name] or float("inf")):
        cells = (_short_cell(_of(runs, world, name)) for world in worlds)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _short_cell(runs: Runs) -> str:
    if not runs:
        return ""
    seconds = median_seconds(runs)
    return "not reached" if seconds is None else f"{seconds:.0f}"


def compared(runs: Runs, world: str) -> set[str]:
    """Contenders of a world that goals compare: the fastest gemps, the fastest other, and what the goal is against.

    For bytes: the baseline's and the leanest.
    """
    against = {goal.world: goal.against for goal in GOALS}.get(world, BASELINE)
    names = {min(side, key=side.__getitem__) for side in _medians(runs, world) if side} | {against} - {FASTEST_OTHER}
    if world == BYTES_WORLD and (sent := _sent(runs)):
        names |= {BYTES_BASELINE, min(sent, key=sent.__getitem__)} & sent.keys()
    return names


def judged(runs: Runs) -> Iterable[str]:
    """A line for each goal whose world has runs."""
    for goal in GOALS:
        mine, others = _medians(runs, goal.world)
        if goal.against == FASTEST_OTHER:
            against = min(others, key=others.__getitem__, default="")
        else:
            against = goal.against if goal.against in others else ""
        if not any(one["world"] == goal.world and one["contender"] in (BASELINE, against) for one in runs):
            yield f"{goal.world}: not decided"
            continue
        if not mine:
            yield f"{goal.world}: gemps did not reach the target: missed"
            continue
        best = min(mine, key=mine.__getitem__)
        if not against:
            yield f"{goal.world}: {best} {mine[best]:.1f} s; {goal.against} did not reach the target"
            continue
        ratio = others[against] / mine[best]
        met = "met" if ratio >= goal.ratio else "missed"
        fastest = min(others, key=others.__getitem__)
        verdict = f"{goal.world}: {against} / {best}: {ratio:.2f}, goal {goal.ratio:.2f}: {met}"
        if fastest != against:
            verdict += f"; against the fastest other, {fastest}: {others[fastest] / mine[best]:.2f}"
        yield verdict
    yield from _judged_bytes(runs)


def _medians(runs: Runs, world: str) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of kinds of gemps and of others, where they reached the target."""
    medians = {name: median_seconds(_of(runs, world, name)) for name in {one["contender"] for one in runs}}
    reached = {name: seconds for name, seconds in medians.items() if seconds}
    mine = {name: seconds for name, seconds in reached.items() if name.startswith("gemps")}
    return mine, {name: seconds for name, seconds in reached.items() if name not in mine}


def _sent(runs: Runs) -> dict[str, float]:
    """Bytes of kinds of gemps that reached the target in BYTES_WORLD."""
    mine, _ = _medians(runs, BYTES_WORLD)
    return {name: statistics.median(one["sent"] for one in _of(runs, BYTES_WORLD, name)) for name in mine}


def _judged_bytes(runs: Runs) -> Iterable[str]:
    sent = _sent(runs)
    if BYTES_BASELINE in sent:
        leanest = min(sent, key=sent.__getitem__)
        ratio = sent[BYTES_BASELINE] / sent[leanest]
        met = "met" if ratio >= BYTES_RATIO else "missed"
        yield f"{BYTES_WORLD}: bytes of {BYTES_BASELINE} / {leanest}: {ratio:.1f}, goal {BYTES_RATIO:.0f}: {met}"


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
