"""The figures that the paper has not: what they run, and each claim on both sides of its inequality."""

from dataclasses import replace

import pytest
from gem_reproduction.figures import BEYOND, choose
from gem_reproduction.figures.arrivals import ARRIVALS, failed
from gem_reproduction.figures.interface import Group
from gem_reproduction.outcomes import Outcome
from gem_reproduction.reproduction import runs_of
from gem_reproduction.runs import Scope

from gem_core import create_rule, rule_names
from tests.reproduction.made_up import groups, met, outcome, verdicts

QUICK = Scope(quick=True, steps=200)


def ends_with(loss: float, accuracy: float) -> Outcome:
    made = outcome(loss)
    return replace(made, evaluations=[replace(made.evaluations[-1], accuracy=accuracy)])


def test_the_figure_of_rules_has_every_rule_of_gemps_with_settings_that_it_takes() -> None:
    (figure,) = choose(["rules"])
    for scope in (QUICK, Scope(seeds=1)):
        runs = runs_of([figure], scope)
        assert {run.settings.rule for run in runs} == {name for name in rule_names() if create_rule(name)}
        assert {run.settings.workers for run in runs} >= {1, 10, 30, 100}
        for settings in {(run.settings.rule, run.settings.rule_settings): run.settings for run in runs}.values():
            create_rule(settings.rule, **settings.settings_of_rule())


def test_every_worker_takes_as_many_gradients_under_every_rule_and_however_many_they_are() -> None:
    for run in runs_of(choose(["rules"]), QUICK):
        rule = create_rule(run.settings.rule, **run.settings.settings_of_rule())
        assert run.settings.steps * rule.worker_step.local_steps == 100


def test_the_quick_form_is_of_the_mlp_and_short() -> None:
    runs = runs_of(choose([BEYOND]), QUICK)
    assert {run.settings.model for run in runs} == {"mlp"}
    assert sum(run.commits for run in runs) < 1_000_000
    assert {run.settings.model for run in runs_of(choose(["better-default"]), Scope(seeds=1))} == {"mlp", "cnn"}


@pytest.mark.parametrize("workers", [2, 3, 4, 30])
def test_a_quarter_is_slow_when_there_are_four(workers: int) -> None:
    settings = ARRIVALS["lognormal, a quarter 4 times slower"](workers)
    run = QUICK.simulations(workers=workers, **settings)[0]
    assert run.settings.spans("slow") == dict.fromkeys(range(workers // 4), 4.0)


def test_a_run_failed_that_is_right_for_less_than_a_fifth() -> None:
    assert not failed(Group([ends_with(2.0, 0.2)]))
    assert failed(Group([ends_with(2.0, 0.199), outcome()])) == 1
    assert failed(Group([replace(outcome(), finite=False), replace(outcome(), skipped=1)])) == 2


@pytest.mark.long
def test_rules_wants_gem_without_failure_and_lowest_with_many_workers() -> None:
    few, many = "eta 0.05 | round-robin | {} | 10", "eta 0.05 | round-robin | {} | 30"
    assert met("rules", {}, outcome(0.1)) == [True, True] * 3
    assert met("rules", {few.format("gem"): ends_with(0.1, 0.1)}, outcome(0.1))[:2] == [False, True]
    assert met("rules", {few.format("dana"): outcome(0.09)}, outcome(0.1))[:2] == [True, True]
    assert met("rules", {many.format("dana"): outcome(0.09)}, outcome(0.1)) == [True, False, True, True, True, True]
    lowest = verdicts("rules", {many.format("dana"): outcome(0.09)}, outcome(0.1))[1].numbers["30 workers"]
    assert lowest == {"L of GEM": pytest.approx(0.1), "lowest L of another": pytest.approx(0.09), "others below GEM": 1}


def test_sweeps_wants_kappa_4_for_few_and_not_for_many_and_pi_max_5() -> None:
    good = {
        "kappa 4, 4 workers": outcome(0.09), "kappa 4, 32 workers": outcome(0.11),
        **{f"pi_max 1, {n} workers": outcome(0.11) for n in (4, 16, 32)},
        **{f"pi_max 10, {n} workers": outcome(0.091) for n in (4, 16, 32)},
    }  # fmt: skip
    assert met("sweeps", good, outcome(0.1)) == [True, True]
    assert met("sweeps", good | {"kappa 4, 4 workers": outcome(0.11)}, outcome(0.1)) == [False, True]
    assert met("sweeps", good | {"kappa 4, 32 workers": outcome(0.09)}, outcome(0.1)) == [False, True]
    assert met("sweeps", good | {"pi_max 1, 16 workers": outcome(0.1)}, outcome(0.1)) == [True, False]
    assert met("sweeps", good | {"pi_max 10, 32 workers": outcome(0.089)}, outcome(0.1)) == [True, False]


def test_sweeps_runs_gems_defaults_once() -> None:
    runs = [run for run in runs_of(choose(["sweeps"]), QUICK) if not run.settings.rule_settings]
    assert sorted(run.settings.workers for run in runs) == [4, 16, 32]


def test_samples_wants_a_higher_loss_with_each_number_of_workers_at_equal_samples() -> None:
    good = {f"GEM, {n} workers": outcome(n / 100) for n in (4, 16, 32)}
    assert met("samples", good, outcome(0.01)) == [True]
    assert met("samples", good | {"GEM, 16 workers": outcome(0.04)}, outcome(0.01)) == [False]
    assert met("samples", good, outcome(0.05)) == [False]
    for scope in (QUICK, Scope(seeds=1)):
        assert len({run.commits for run in runs_of(choose(["samples"]), scope)}) == 1


def test_wire_types_wants_deltas_for_a_tenth_and_both_for_a_quarter() -> None:
    deltas, both = "deltas bfloat16, parameters float32", "deltas bfloat16, parameters bfloat16"
    assert met("wire-types", {deltas: outcome(0.1099), both: outcome(0.1249)}, outcome(0.1)) == [True, True]
    assert met("wire-types", {deltas: outcome(0.1101)}, outcome(0.1)) == [False, True]
    assert met("wire-types", {both: outcome(0.1251)}, outcome(0.1)) == [True, False]


def test_heterogeneity_wants_gem_within_three_times_and_below_the_others() -> None:
    late = "half join in the middle"
    assert met("heterogeneity", {f"gem, {late}": outcome(0.299)}, outcome(0.1)) == [True, False]
    assert met("heterogeneity", {f"gem, {late}": outcome(0.301)}, outcome(0.1))[0] is False
    assert met("heterogeneity", {f"gem, {late}": ends_with(0.1, 0.1)}, outcome(0.1))[0] is False
    assert met("heterogeneity", {f"dana, {late}": outcome(0.099)}, outcome(0.1)) == [True, False]
    assert met("heterogeneity", {}, outcome(0.1)) == [True, True]


def test_workers_are_slow_die_and_join_as_heterogeneity_says() -> None:
    (figure,) = choose(["heterogeneity"])
    settings = {name: runs[0].settings for name, runs in figure.runs(QUICK).items()}
    half = range(8, 16)
    assert settings["gem, half 4 times slower"].spans("slow") == dict.fromkeys(half, 4.0)
    assert settings["gem, half die in the middle"].spans("die") == dict.fromkeys(half, 100.0)
    assert settings["gem, half join in the middle"].spans("join") == dict.fromkeys(half, 100.0)
    assert all(one.seconds == 200 and not one.steps for one in settings.values())


@pytest.mark.long
def test_better_default_wants_less_over_all_and_not_much_more_anywhere() -> None:
    def held_out(loss: float) -> Outcome:
        return outcome(0.1, validation=[loss])

    names = groups("better-default", {}, outcome())
    kappa_2 = {name: held_out(0.09) for name in names if "kappa 2" in name}
    nothing, *_ = met("better-default", kappa_2, held_out(0.1))
    assert nothing is False, "kappa 2 is better everywhere"
    assert met("better-default", {name: held_out(0.096) for name in kappa_2}, held_out(0.1))[0] is True
    somewhere = "mlp | round-robin | kappa 2 | 32"
    assert met("better-default", kappa_2 | {somewhere: held_out(0.1049)}, held_out(0.1))[0] is False
    assert met("better-default", kappa_2 | {somewhere: held_out(0.1051)}, held_out(0.1))[0] is True
    assert met("better-default", kappa_2 | {somewhere: ends_with(0.09, 0.1)}, held_out(0.1))[0] is True
    # The tables of each order: lowest with some number of workers.
    assert met("better-default", {}, held_out(0.1))[1:] == [True, True]
    ahead = {name: held_out(0.09) for name in names if "kappa 2" in name and "round-robin" in name}
    assert met("better-default", ahead, held_out(0.1))[1:] == [False, True]
