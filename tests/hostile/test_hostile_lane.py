"""The lane under strangers and broken peers: what they cost the server, and what they leave the honest worker."""

import pytest

from tests.figures import Figures
from tests.forms import FULL
from tests.hostile.attacks import Attack, cases
from tests.hostile.harness import Measure, Measured, judge
from tests.hostile.lane import ATTACKS, HELLO_SECONDS, LATE, MUTATED_FRAMES, STRANGER_KIB, STRANGERS
from tests.hostile.lane_frames import SPECIFIED, legal

PARTIAL = "partial first frames on 1200 connections"


def attacked(attack: Attack, measure: Measure) -> Measured:
    measured = measure(attack)
    judge(measured)
    return measured


@pytest.mark.parametrize(
    "attack", [one for one in cases(ATTACKS, FULL) if one.name != PARTIAL], ids=lambda attack: attack.name
)
def test_attack_at_the_lane_leaves_the_honest_worker_its_share(attack: Attack, measure: Measure) -> None:
    measured = attacked(attack, measure)
    if FULL and "mutated" in attack.name:
        assert measured.facts["frames"] == MUTATED_FRAMES


def test_stranger_without_a_hello_costs_little_memory_and_is_closed_after_five_seconds(
    measure: Measure, figures: Figures
) -> None:
    measured = attacked(ATTACKS.by_name[PARTIAL], measure)
    facts = measured.facts
    # The server may close old connections to make room for new ones: then fewer cost as much.
    each = max(measured.peak_mib, 0) * 1024 / facts["most_open"]
    figures(
        f"{STRANGERS} connections at the lane, each with a part of a first frame",
        f"at most {facts['most_open']} open at once, {each:.1f} KiB of the server's memory each; {facts['closed']} "
        f"closed, the last one after {facts['longest_ms'] / 1000:.1f} s",
    )
    assert facts["connections"] == facts["closed"] == STRANGERS
    assert facts["longest_ms"] <= (HELLO_SECONDS + LATE) * 1000
    assert each <= STRANGER_KIB


def test_table_of_legal_frames_is_the_specified_one() -> None:
    assert legal() == SPECIFIED
