"""Links that payloads share, held to schedules that were worked out by hand, and to a slow twin."""

import math
from random import Random

import pytest
from gem_simulator.link import SharedLink


def ends(link: SharedLink) -> list[tuple[float, int]]:
    """All flows' ends, once no more start."""
    found = []
    while link.next_end < math.inf:
        found.append(link.pop())
    return found


def test_a_flow_alone_has_the_whole_link() -> None:
    link = SharedLink(10, 10)
    link.enter(0, 100, at=5)
    assert ends(link) == [(15, 0)]


def test_two_equal_flows_that_start_together_end_together_after_twice_the_time() -> None:
    link = SharedLink(10, 10)
    link.enter(0, 100, at=0)
    link.enter(1, 100, at=0)
    assert ends(link) == [(20, 0), (20, 1)]


def test_a_flow_that_starts_later_slows_the_first_down_and_is_slowed_down_by_it() -> None:
    link = SharedLink(10, 10)
    link.enter(0, 100, at=0)
    link.enter(1, 100, at=5)
    # At 5 the first has 50 left, at half the rate until 15; then the second has 50 left, alone.
    assert ends(link) == [(15, 0), (20, 1)]


def test_a_short_flow_overtakes_a_long_one() -> None:
    link = SharedLink(10, 10)
    link.enter(0, 100, at=0)
    link.enter(1, 20, at=2)
    assert ends(link) == [(6, 1), (12, 0)]


def test_a_removed_flow_leaves_its_share_to_the_others() -> None:
    link = SharedLink(10, 10)
    link.enter(0, 100, at=0)
    link.enter(1, 100, at=0)
    link.remove(0, at=4)
    link.remove(0, at=5)
    assert ends(link) == [(12, 1)]


def test_no_flow_is_faster_than_its_other_end() -> None:
    link = SharedLink(40, 10)
    for flow in range(8):
        link.enter(flow, 100, at=0)
    assert ends(link) == [(20, flow) for flow in range(8)]
    link.enter(8, 100, at=30)
    assert ends(link) == [(40, 8)]


@pytest.mark.parametrize("flow_rate", [1.0, 10.0])
def test_random_flows_end_when_a_slow_twin_says(flow_rate: float) -> None:
    random = Random(3)
    starts = sorted((random.uniform(0, 50), flow, random.randint(1, 60)) for flow in range(40))
    link, found = SharedLink(10, flow_rate), {}
    for at, flow, size in starts:
        while link.next_end <= at:
            end, ended = link.pop()
            found[ended] = end
        link.enter(flow, size, at)
    found |= {flow: end for end, flow in ends(link)}
    assert found == pytest.approx(slow_ends(starts, 10, flow_rate))


def slow_ends(starts: list[tuple[float, int, int]], rate: float, flow_rate: float) -> dict[int, float]:
    """Takes the bytes of each interval from each flow; what has left the link is all that was sent."""
    left: dict[int, float] = {}
    found: dict[int, float] = {}
    coming = list(starts)
    now = sent = 0.0
    while left or coming:
        share = min(flow_rate, rate / len(left)) if left else 0.0
        until = min([coming[0][0]] if coming else [], default=math.inf)
        if left:
            until = min(until, now + min(left.values()) / share)
        for flow in left:
            left[flow] -= share * (until - now)
        sent += share * (until - now) * len(left)
        now = until
        for flow in [flow for flow, rest in left.items() if rest < 1e-9]:
            del left[flow]
            found[flow] = now
        while coming and coming[0][0] <= now:
            _, flow, size = coming.pop(0)
            left[flow] = size
    assert sent == pytest.approx(sum(size for _, _, size in starts))
    return found
