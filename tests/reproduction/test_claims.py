"""Each claim on made-up numbers, on both sides of its inequality."""

from dataclasses import replace

import pytest
from gem_reproduction.errors import ReproductionError
from gem_reproduction.figures import Group, choose, figure_names

from tests.reproduction.made_up import CHANCE, met, outcome, verdicts

GEM = {n: f"GEM, {n} workers" for n in (5, 8, 10, 16, 20, 30, 100)}
DOWNPOUR = {n: f"DOWNPOUR, {n} workers" for n in (20, 30)}
STALE = {n: f"adaptive staleness, {n} workers" for n in (5, 10, 20, 30)}
SGD = "momentum SGD"


def test_figures_that_must_hold_are_those_that_gemps_is_judged_by() -> None:
    must = {
        name: sum(one.must_hold for one in verdicts(name, {}, outcome(validation=[0.1, 0.1], times=[(1.0, 0.1)])))
        for name in figure_names()
    }
    assert must == {
        "1a": 2, "1b": 1, "1c": 2, "1d": 1, "2": 2, "3": 2, "4": 1, "5": 0, "6": 2, "7": 0, "8": 3, "9": 0, "10": 0,
        "exchanges": 0, "rules": 0, "sweeps": 0, "wire-types": 0, "heterogeneity": 0, "better-default": 0,
        "samples": 0,
    }  # fmt: skip


def test_1a_holds_up_to_a_tenth_more_than_with_five_workers() -> None:
    assert met("1a", {GEM[5]: outcome(0.1), GEM[30]: outcome(0.1099)}, outcome(0.05)) == [True, True]
    assert met("1a", {GEM[5]: outcome(0.1), GEM[30]: outcome(0.1101)}, outcome(0.05)) == [True, False]


@pytest.mark.parametrize(
    "failed",
    [
        replace(outcome(0.01), gave_up=True),
        replace(outcome(0.01), skipped=1),
        replace(outcome(0.01), finite=False),
        outcome(float("nan")),
        outcome(CHANCE),
    ],
)
def test_1a_is_failed_by_one_run_that_diverges_or_learns_nothing(failed: object) -> None:
    assert met("1a", {GEM[20]: failed}, outcome(0.1))[0] is False  # type: ignore[dict-item]


def test_1b_wants_ten_times_gems_loss_with_thirty_workers() -> None:
    assert met("1b", {GEM[30]: outcome(0.1), DOWNPOUR[30]: outcome(1.001)}, outcome())[0] is True
    assert met("1b", {GEM[30]: outcome(0.1), DOWNPOUR[30]: outcome(0.999)}, outcome())[0] is False
    assert met("1b", {GEM[30]: outcome(0.1), DOWNPOUR[30]: replace(outcome(0.01), finite=False)}, outcome())[0] is True
    by_chance = [f"{name}, 30 workers, exponential compute times" for name in ("DOWNPOUR", "GEM")]
    assert met("1b", dict(zip(by_chance, (outcome(1.001), outcome(0.1)), strict=True)), outcome())[1] is True
    assert met("1b", dict(zip(by_chance, (outcome(0.999), outcome(0.1)), strict=True)), outcome())[1] is False


def test_1c_wants_four_times_gems_loss_everywhere_and_no_divergence() -> None:
    slow = {name: outcome(0.4001) for name in STALE.values()}
    assert met("1c", slow, outcome(0.1)) == [True, True]
    assert met("1c", slow | {STALE[20]: outcome(0.3999)}, outcome(0.1)) == [True, False]
    assert met("1c", slow | {STALE[5]: replace(outcome(1.0), skipped=1)}, outcome(0.1)) == [False, True]


def test_1d_wants_gem_lowest_at_every_number_of_workers() -> None:
    lowest = {GEM[n]: outcome(0.099) for n in (5, 10, 20, 30)}
    assert met("1d", lowest, outcome(0.1)) == [True]
    assert met("1d", lowest | {DOWNPOUR[20]: outcome(0.098)}, outcome(0.1)) == [False]


def test_2_wants_nothing_that_is_not_finite_and_still_less_loss_at_the_end() -> None:
    assert met("2", {GEM[100]: replace(outcome(0.1), middle=0.101)}, outcome()) == [True, True]
    assert met("2", {GEM[100]: replace(outcome(0.1), middle=0.099)}, outcome()) == [True, False]
    assert met("2", {GEM[100]: replace(outcome(0.1), skipped=1)}, outcome())[0] is False


def test_3_wants_less_pi_and_more_blocked_with_every_step_up_in_workers() -> None:
    fine = {GEM[n]: replace(outcome(), mean_pi=1 / n, blocked_fraction=1 - 1 / n) for n in (5, 10, 20, 30)}
    assert met("3", fine, outcome()) == [True, True]
    assert met("3", fine | {GEM[20]: replace(fine[GEM[20]], mean_pi=0.11)}, outcome()) == [False, True]
    assert met("3", fine | {GEM[20]: replace(fine[GEM[20]], blocked_fraction=0.89)}, outcome()) == [True, False]


def test_4_wants_a_fifth_of_the_time_with_eight_workers() -> None:
    one = {"GEM, 1 worker": outcome(times=[(1.0, 2.0), (10.0, 0.5), (20.0, 0.1)])}
    assert met("4", one | {GEM[8]: outcome(times=[(1.0, 0.51), (2.0, 0.49)])}, outcome()) == [True]
    assert met("4", one | {GEM[8]: outcome(times=[(1.0, 0.51), (2.1, 0.49)])}, outcome()) == [False]


def test_4_is_not_met_when_one_worker_never_gets_there() -> None:
    never = {"GEM, 1 worker": outcome(1.0, times=[(1.0, 2.0)])}
    assert met("4", never | {GEM[8]: outcome(times=[(1.0, 0.1)])}, outcome()) == [False]


def test_5_tells_a_validation_loss_that_rises_from_one_that_does_not() -> None:
    rises, falls = outcome(validation=[0.2, 0.1, 0.13]), outcome(validation=[0.2, 0.1, 0.12])
    assert met("5", {SGD: rises, GEM[10]: falls}, outcome()) == [True, True]
    assert met("5", {SGD: falls, GEM[10]: rises}, outcome()) == [False, False]


def test_6_wants_gem_within_a_tenth_of_momentum_sgd_and_downpour_far_off() -> None:
    far = {DOWNPOUR[20]: outcome(1.5), SGD: outcome(0.1)}
    assert met("6", far, outcome(0.109)) == [True, True]
    assert met("6", far | {GEM[5]: outcome(0.111)}, outcome(0.05)) == [False, True]
    assert met("6", far | {DOWNPOUR[20]: outcome(0.49)}, outcome(0.05)) == [True, False]


def test_7_wants_less_loss_with_sixteen_workers() -> None:
    assert met("7", {GEM[8]: outcome(1.0), GEM[16]: outcome(0.99)}, outcome()) == [True]
    assert met("7", {GEM[8]: outcome(0.99), GEM[16]: outcome(1.0)}, outcome()) == [False]


def test_8_wants_kappa_2_to_beat_1_pi_to_rise_and_4_to_suffer() -> None:
    def kappas(*losses: float, pi: tuple[float, ...] = (1, 2, 3, 4)) -> list[bool]:
        runs = {
            f"kappa {kappa}, 20 workers": replace(outcome(loss), mean_pi=factor)
            for kappa, loss, factor in zip((1, 2, 3, 4), losses, pi, strict=True)
        }
        return met("8", runs, outcome())[:3]

    assert kappas(1, 0.5, 0.4, 0.41) == [True, True, True]
    assert kappas(0.49, 0.5, 0.4, 0.41) == [False, True, True]
    assert kappas(1, 0.5, 0.4, 0.39) == [True, True, False]
    assert kappas(1, 0.5, 0.4, 0.41, pi=(1, 2, 1.9, 4)) == [True, False, True]


@pytest.mark.parametrize("figure", ["9", "10"])
def test_9_and_10_want_smaller_medians_with_sixteen_workers(figure: str) -> None:
    def medians(value: float) -> object:
        return replace(outcome(), medians=replace(outcome().medians, by_tensor=[[value, float("nan")], [value, value]]))

    assert met(figure, {GEM[8]: medians(0.5), GEM[16]: medians(0.4)}, outcome()) == [True]  # type: ignore[dict-item]
    assert met(figure, {GEM[8]: medians(0.4), GEM[16]: medians(0.5)}, outcome()) == [False]  # type: ignore[dict-item]


def test_exchanges_want_the_services_no_worse_than_the_papers() -> None:
    assert met("exchanges", {"paper, 20 workers": outcome(0.1)}, outcome(0.1099)) == [True]
    assert met("exchanges", {"paper, 20 workers": outcome(0.1)}, outcome(0.1101)) == [False]


def test_the_loss_of_several_seeds_is_their_geometric_mean_and_infinite_when_one_diverged() -> None:
    assert Group([outcome(0.1), outcome(0.4)]).loss == pytest.approx(0.2)
    assert Group([outcome(0.1), replace(outcome(0.4), finite=False)]).loss == float("inf")


def test_an_unknown_figure_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ReproductionError, match="there is no figure '12': choose among 1a, 1b, 1c, 1d, 2,"):
        choose(["1", "12"])


def test_1_is_1a_to_1d_and_all_is_all() -> None:
    assert [figure.name for figure in choose(["1", "1b"])] == ["1a", "1b", "1c", "1d"]
    assert [figure.name for figure in choose(["beyond", "all"])] == list(figure_names())
