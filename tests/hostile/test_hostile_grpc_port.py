"""What floods, silent calls and strangers at the ordinary port do to an honest worker."""

import pytest

from tests.forms import FULL
from tests.hostile.attacks import Attack, cases
from tests.hostile.grpc_port import ATTACKS
from tests.hostile.harness import Measure, judge


@pytest.mark.parametrize("attack", cases(ATTACKS, FULL), ids=lambda attack: attack.name)
def test_attack_at_the_grpc_port_leaves_the_honest_worker_its_share(attack: Attack, measure: Measure) -> None:
    judge(measure(attack))
