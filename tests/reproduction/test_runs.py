"""Runs do what they say: momentum SGD by its equations, pi as the rule has it."""

import numpy as np
import pytest
import torch
from gem_reproduction.median_pi import MedianOfPi
from gem_reproduction.momentum_sgd import train
from gem_reproduction.patterns import load_patterns
from gem_reproduction.perform import perform
from gem_reproduction.runs import Scope
from gem_simulator import simulate
from gem_worker.flat_model import FlatModel
from gem_worker.models import create_model
from gem_worker.tasks import batch_numbers, create_task
from numpy.typing import NDArray
from torch.nn import functional

from gem_core import RuleState, create_rule

SCOPE = Scope(steps=6, seeds=1, model="mlp")


def test_momentum_sgd_is_its_equations_on_the_batches_of_worker_0() -> None:
    settings = SCOPE.momentum_sgd(eta=0.1)[0].settings
    task = create_task("digits")
    found = train(settings, task)
    model = create_model("mlp", task.input_shape, task.classes, settings.seed)
    parameters = list(model.parameters())
    velocities = [torch.zeros_like(one) for one in parameters]
    batches = batch_numbers(task.train, 64, settings.seed, 0)
    losses = []
    for _ in range(6):
        inputs, labels = task.train.batch(next(batches)[1])
        loss = functional.cross_entropy(model(inputs), labels)
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for one, velocity, gradient in zip(
                parameters, velocities, torch.autograd.grad(loss, parameters), strict=True
            ):
                velocity.mul_(0.9).add_(gradient)
                one.sub_(0.1 * velocity)
    assert found.losses == pytest.approx(losses, rel=1e-5)
    assert found.finite
    assert [one.commits for one in found.evaluations] == [6]


def test_momentum_sgd_ends_where_its_loss_is_not_finite() -> None:
    outcome = perform(Scope(steps=200, seeds=1, model="mlp").momentum_sgd(eta=1e30)[0])
    assert outcome.has_diverged
    assert outcome.commits < 200


def test_pi_that_is_looked_at_is_the_rules() -> None:
    """Its mean and its blocked and clamped fractions, over delta != 0, are those that the rule then reports."""
    run = SCOPE.simulations(workers=5, rule_settings={"kappa": 2.0})[0]
    rule = create_rule("gem", kappa=2.0)
    seen: list[tuple[float, float, float]] = []

    def look(parameters: NDArray[np.float32], state: RuleState, delta: NDArray[np.float32]) -> None:
        factors = rule.factors(parameters, state, delta, slice(None))
        assert factors is not None
        factors = factors[delta != 0]
        seen.append((float(factors.mean()), float((factors == 0).mean()), float((factors == 5).mean())))

    history = simulate(run.settings, rule=rule, before_rule=look).history
    columns = [history.column(name) for name in ("mean_pi", "blocked_fraction", "clamped_fraction")]
    assert np.allclose(np.array(seen), np.stack(columns, axis=1), rtol=1e-5)
    assert len(seen) == 30


def test_every_worker_is_looked_at_in_a_round_robin_order() -> None:
    layout = FlatModel(create_model("mlp", (1, 8, 8), 10, 0)).layout
    for workers in (5, 8, 16, 100):
        rule = create_rule("gem")
        look = MedianOfPi(rule, layout, 200 * workers, workers)
        state = rule.new_worker(np.zeros(layout.parameter_count, np.float32))
        for _ in range(200 * workers):
            look(state.snapshot, state, state.snapshot)
        ranks = {commits % workers for commits in look.found.commits}
        assert len(ranks) >= min(workers, 20)
        assert len(look.found.commits) <= 101


def test_medians_are_of_each_tensor_and_leave_out_where_delta_is_0() -> None:
    layout = FlatModel(create_model("mlp", (1, 8, 8), 10, 0)).layout
    rule = create_rule("gem", pi_max=100.0)
    delta = np.zeros(layout.parameter_count, np.float32)
    bias = layout.parameters[0].elements
    delta[bias : bias + 3] = 1
    state = rule.new_worker(np.zeros_like(delta))
    state.vectors[0][bias : bias + 3] = (0, 10, 50)  # pi = 0.9 m + 1
    look = MedianOfPi(rule, layout, 1, 1)
    look(state.snapshot, state, delta)
    assert look.found.whole == [10.0]
    assert look.found.by_tensor[0][1] == 10.0
    assert np.isnan(look.found.by_tensor[0][0])


def test_a_run_of_another_rule_has_no_medians() -> None:
    assert perform(SCOPE.simulations("downpour", workers=2)[0]).medians.whole == []


def test_patterns_are_the_same_every_time_and_can_be_learnt_from() -> None:
    first, again = load_patterns(), load_patterns()
    images, labels = first.train.batch(np.arange(1024))
    assert torch.equal(images, again.train.batch(np.arange(1024))[0])
    held_out, truth = first.test.batch(np.arange(256))
    # Whoever takes each class's mean image and asks which is nearest is mostly right.
    means = torch.stack([images[labels == label].mean(0) for label in range(10)]).flatten(1)
    guessed = torch.cdist(held_out.flatten(1), means).argmin(1)
    assert (guessed == truth).float().mean() > 0.5
