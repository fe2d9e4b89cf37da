"""The rules that were tried in place of GEM's: by hand, and against a slow transcription of YellowFin's formula."""

import math

import numpy as np
import pytest
from gem_reproduction.candidates import CANDIDATES, YellowFinMomentum, momentum_of
from gem_reproduction.perform import perform
from gem_reproduction.runs import Run, Scope
from numpy.typing import NDArray

from gem_core import RuleState, create_rule

SCOPE = Scope(steps=6, seeds=1, model="mlp")


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_signed_moment_with_one_worker_is_momentum_sgd() -> None:
    rule = CANDIDATES["signed-moment"]({"momentum": 0.5})
    theta = vector(0, 0)
    state = rule.new_worker(theta)
    for delta in (vector(1, 2), vector(-1, 0), vector(0, 4)):
        rule.commit(theta, state, delta, 0)
    # Velocities (1, 2), (-0.5, 1), (-0.25, 4.5).
    assert theta.tolist() == [0.25, 7.5]
    assert state.snapshot.tolist() == theta.tolist()


def test_signed_moment_goes_where_the_moment_points_by_what_others_have_left() -> None:
    rule = CANDIDATES["signed-moment"]({"momentum": 0.5, "kappa": 2.0})
    theta = vector(1, 1, 9)
    state = rule.new_worker(vector(0, 0, 0))
    state.vectors[0][:] = (4, -4, 4)
    statistics = rule.commit(theta, state, vector(-1, 1, 1), 1)
    # m = 1, -1, 3; 2 |m| - |theta - s| = 1, 1, below 0.
    assert theta.tolist() == [2, 0, 9]
    assert statistics.blocked_fraction == pytest.approx(1 / 3)
    assert statistics.mean_pi == pytest.approx((-1 - 1 + 0) / 3)


def test_clipped_difference_is_what_is_missing_of_the_moment_cut_both_ways() -> None:
    rule = CANDIDATES["clipped-difference"]({"momentum": 0.5, "pi_max": 2.0})
    theta = vector(1, 9, -9, 9)
    state = rule.new_worker(vector(0, 0, 0, 0))
    state.vectors[0][:] = 4
    rule.commit(theta, state, vector(1, 1, 1, 0), 1)
    # m - (theta - s) = 2, -6, 12, -7, cut to 2, 2, 2, 0.
    assert theta.tolist() == [3, 7, -7, 9]
    assert state.snapshot.tolist() == theta.tolist()


def test_tuned_momentum_is_gem_with_the_momentum_that_yellowfin_measures() -> None:
    random = np.random.default_rng(0)
    rule = CANDIDATES["tuned-momentum"]({"beta": 0.5})
    measured = YellowFinMomentum(0.5)
    theta = random.normal(size=50).astype(np.float32)
    state = rule.new_worker(theta)
    seen = []
    for _ in range(30):
        delta = random.normal(size=50).astype(np.float32)
        theta += 0.3 * random.normal(size=50).astype(np.float32)  # of others
        gem, copied = theta.copy(), RuleState(state.snapshot.copy(), (state.vectors[0].copy(),))
        seen.append(measured.measure(delta))
        create_rule("gem", momentum=seen[-1]).commit(gem, copied, delta, 1)
        rule.commit(theta, state, delta, 1)
        assert np.allclose(theta, gem, rtol=1e-6, atol=1e-6)
    assert max(seen) - min(seen) > 0.1, "a momentum that stays proves nothing"


@pytest.mark.parametrize(
    ("distance", "variance", "least", "most", "mu"),
    [
        (0.5, 0.5, 1.0, 1.0, 0.25),  # p = 1/4 and x = 1/2, with which both sides are 1/8
        (1e9, 0.5, 1.0, 9.0, 0.25),  # x = 0, and the range of the curvature: (3 - 1) / (3 + 1)
        (0.0, 0.5, 1.0, 9.0, 1.0),  # there already: x = 1
    ],
)
def test_yellowfins_momentum_by_hand(distance: float, variance: float, least: float, most: float, mu: float) -> None:
    assert momentum_of(distance, variance, least, most) == pytest.approx(mu)


def test_yellowfins_momentum_is_that_of_a_slow_transcription_whatever_the_scale() -> None:
    random = np.random.default_rng(1)
    beta = 0.9
    gradients = [(1 + 9 * random.random()) * (random.normal(size=8) + 1) for _ in range(60)]
    fast, scaled = YellowFinMomentum(beta), YellowFinMomentum(beta)
    mu = 0.9

    def average(values: list[float]) -> float:
        weights = beta ** np.arange(len(values))[::-1]
        return float(np.dot(weights, values) / weights.sum())

    distances = []
    for step in range(1, len(gradients) + 1):
        so_far = gradients[:step]
        squares = [float(one @ one) for one in so_far]
        windows = [squares[max(0, at - 19) : at + 1] for at in range(step)]
        least = math.exp(average([math.log(min(window)) for window in windows]))
        most = math.exp(average([math.log(max(window)) for window in windows]))
        mean = np.array([average([float(one[at]) for one in so_far]) for at in range(8)])
        variance = average(squares) - float(mean @ mean)
        distances.append(average([math.sqrt(one) for one in squares]) / average(squares))
        p = (average(distances) * least) ** 2 / (2 * max(variance, 1e-15))
        roots = np.roots([1, -3, 3 + p, -1])  # (1 - x)^3 = p x
        x = float(roots[np.argmin(np.abs(roots.imag))].real)
        root = math.sqrt(most / least)
        mu = min(beta * mu + (1 - beta) * max(x**2, ((root - 1) / (root + 1)) ** 2), 0.999)
        assert fast.measure(gradients[step - 1].astype(np.float32)) == pytest.approx(mu, rel=1e-4)
        assert scaled.measure((-0.05 * gradients[step - 1]).astype(np.float32)) == pytest.approx(mu, rel=1e-4)


def test_a_run_of_a_candidate_is_another_run_and_can_be_described() -> None:
    run = SCOPE.simulations(workers=2, candidate="clipped-difference", rule_settings={"pi_max": 2.0})[0]
    assert Run.from_description(run.describe()) == run
    gem = SCOPE.simulations(workers=2, rule_settings={"pi_max": 2.0})[0]
    assert run.key() != gem.key()
    assert "candidate" not in gem.describe(), "or runs that were kept before there were candidates are done again"
    assert run.title().startswith("clipped-difference pi_max 2, 2 workers")
    ours, theirs = perform(run), perform(gem)
    assert ours.commits == theirs.commits == 12
    assert ours.loss != theirs.loss
    assert ours.loss < ours.chance_loss


def test_gems_settings_that_were_asked_for_are_not_a_candidates() -> None:
    scope = Scope(steps=6, seeds=1, model="mlp", rule_settings={"pi_min": -1.0})
    assert scope.simulations(candidate="signed-moment")[0].settings.rule_settings == ""
    assert scope.simulations()[0].settings.rule_settings == "pi_min=-1.0"
