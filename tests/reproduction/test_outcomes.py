"""What is kept of a run."""

import math
from pathlib import Path

import numpy as np
import pytest
from gem_reproduction import outcomes
from gem_reproduction.outcomes import CURVES, POINTS, Curves, Medians, Outcome, curves, tenths
from gem_reproduction.runs import Scope
from gem_simulator.evaluation import Evaluation

RUN = Scope(steps=10, seeds=1).simulations(workers=2)[0]


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = Outcome(
        [Evaluation(20, 10.0, 0.1, 0.2, 0.9)], 2.3, 20, tenths=[1.0, 0.5], middle=0.7, mean_pi=1.0,
        blocked_fraction=0.5,
        clamped_fraction=0.1, staleness=1.0, curves=Curves(*([1.0, 2.0] for _ in range(6))),
        medians=Medians(["a", "b"], [0, 7], [0.5, 0.4], [[0.5, 0.6], [0.4, 0.3]]), seconds=1.5,
    )  # fmt: skip
    outcomes.write(tmp_path, RUN, kept)
    assert outcomes.read(tmp_path, RUN) == kept
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"{RUN.key()}.json"]


def test_losses_that_are_not_finite_are_kept_as_such(tmp_path: Path) -> None:
    kept = Outcome([Evaluation(20, 10.0, math.nan, math.inf, 0.1)], 2.3, finite=False, tenths=[1.0, math.nan])
    outcomes.write(tmp_path, RUN, kept)
    text = outcomes.path(tmp_path, RUN).read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    found = outcomes.read(tmp_path, RUN)
    assert found is not None
    assert (found.loss, found.minibatch_loss, found.has_diverged) == (math.inf, math.inf, True)


@pytest.mark.parametrize("text", ["", "{}", '{"outcome": {"evaluations": []}}', '{"run": 1, "outcome": null}'])
def test_a_file_that_is_no_outcome_counts_as_not_done(tmp_path: Path, text: str) -> None:
    outcomes.path(tmp_path, RUN).parent.mkdir(parents=True)
    outcomes.path(tmp_path, RUN).write_text(text, encoding="utf-8")
    assert outcomes.read(tmp_path, RUN) is None


def test_tenths_and_the_middle_are_means_of_their_commits() -> None:
    found, middle = tenths(np.arange(1000.0))
    assert found == [49.5 + 100 * part for part in range(10)]
    assert middle == 499.5
    assert [math.isnan(one) for one in tenths(np.arange(3.0))[0]].count(False) == 3


def test_curves_are_means_over_all_workers_of_bins_of_steps() -> None:
    steps = np.repeat(np.arange(1.0, 1001), 3)
    found = curves(steps, dict.fromkeys(CURVES, steps))
    assert found.step == [10.0 * (at + 1) for at in range(POINTS)]
    assert found.loss == pytest.approx([10.0 * at + 5.5 for at in range(POINTS)])
    assert curves(np.array([1.0, 1.0, 2.0]), dict.fromkeys(CURVES, np.array([1.0, 3.0, 5.0]))).loss == [2.0, 5.0]


def test_a_run_is_known_by_what_decides_its_result_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**settings: object) -> str:
        return Scope(steps=10, seeds=1).simulations(**{"workers": 2, **settings})[0].key()  # type: ignore[arg-type]

    assert key() == RUN.key()
    others = [key(workers=3), key(eta=0.1), key(rule="downpour"), key(steps=11), key(order="fifo"), key(large=True)]
    assert len({RUN.key(), *others}) == 7
    monkeypatch.setenv("GEMPS_ETA", "0.5")
    monkeypatch.setenv("GEMPS_ORDER", "fifo")
    assert key() == RUN.key()
    assert outcomes.Run.from_description(RUN.describe()) == RUN
