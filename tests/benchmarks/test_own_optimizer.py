"""benchmarks.own_optimizer, with real processes, at a size that takes no time."""

import pytest

pytest.importorskip("torch", exc_type=ImportError)

from benchmarks.own_optimizer import ALONE, BATCH, GRADIENT, Case, measure

BATCHES = 8


@pytest.mark.parametrize(
    ("workers", "every", "exchanges"),
    [*(pytest.param(*one, marks=pytest.mark.long) for one in ((2, "3", 4), (2, GRADIENT, 8))), (2, ALONE, 0)],
)
def test_a_case_trains_on_all_samples_and_counts_its_bytes(workers: int, every: str, exchanges: int) -> None:
    figures = measure(Case("case", workers, every, 0.002), seed=0, batches=BATCHES)
    assert figures["samples"] == BATCHES * BATCH
    assert 0 < figures["loss"] < 5.6  # ln 256 = 5.5
    assert figures["seconds"] > 0
    parameters = 4 * 136_960
    joins = workers if every != ALONE else 0
    assert exchanges * 2 * parameters <= figures["bytes"] <= (exchanges * 2 + 2 * joins) * parameters
