"""What strangers at the socket of shared memory do to an honest worker."""

import pytest

from tests.hostile.attacks import Attack
from tests.hostile.harness import Measure, judge
from tests.hostile.shared_memory import ATTACKS


@pytest.mark.parametrize("attack", ATTACKS.by_name.values(), ids=ATTACKS.by_name)
def test_attack_at_the_shared_memory_leaves_the_honest_worker_its_share(attack: Attack, measure: Measure) -> None:
    judge(measure(attack))
