"""What slow, giant and countless requests at the dashboard do to an honest worker."""

import pytest

from tests.forms import FULL
from tests.hostile.attacks import Attack, cases
from tests.hostile.dashboard import ATTACKS
from tests.hostile.harness import Measure, judge


@pytest.mark.parametrize("attack", cases(ATTACKS, FULL), ids=lambda attack: attack.name)
def test_attack_at_the_dashboard_leaves_the_honest_worker_its_share(attack: Attack, measure: Measure) -> None:
    judge(measure(attack))
