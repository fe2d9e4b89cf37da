"""benchmarks.default_study: its arithmetic is the product's, and its loop the simulator's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gem_simulator import SimulationSettings, simulate
from gem_worker.tasks import create_task

from benchmarks.default_study import __main__ as program
from benchmarks.default_study.arithmetic import (
    DirectionState,
    Gem,
    Matrix,
    apply_gem,
    orthogonalised,
    rms_normalised,
    with_momentum,
)
from benchmarks.default_study.excerpt import excerpt_of
from benchmarks.default_study.plan import METHODS
from benchmarks.default_study.tables import found_in, gain
from benchmarks.default_study.training import EXPONENTIAL, ROUND_ROBIN, Run, train
from gem_core import create_rule


def new_state(size: int) -> DirectionState:
    return DirectionState(torch.zeros(size), torch.zeros(size))


def test_the_rule_is_that_of_the_server_bit_for_bit() -> None:
    random = torch.Generator().manual_seed(0)
    theta, snapshot, delta = (torch.randn(1000, generator=random) for _ in range(3))
    rule = create_rule("gem")
    expected = theta.numpy().copy()
    state = rule.new_worker(expected)
    np.copyto(state.snapshot, snapshot.numpy())
    rule.commit(expected, state, delta.numpy().copy(), 3, 0.1)
    apply_gem(theta, snapshot, torch.zeros(1000), delta, Gem())
    assert theta.numpy().tobytes() == expected.tobytes()


def test_a_signed_gap_ignores_what_others_moved_against_the_delta() -> None:
    rule = Gem(momentum=0.0, kappa=2.0, pi_max=1.0, signed_gap=True)
    theta, delta = torch.tensor([1.5, -1.5]), torch.tensor([1.0, 1.0])
    apply_gem(theta, torch.zeros(2), torch.zeros(2), delta, rule)
    assert theta.tolist() == [2.0, -0.5]


def test_momentum_of_equal_gradients_is_the_gradient_from_the_first_on() -> None:
    state, gradient = new_state(3), torch.tensor([1.0, -2.0, 0.5])
    for _ in range(4):
        torch.testing.assert_close(with_momentum(gradient, state, 0.9), gradient)


def test_the_first_direction_is_the_sign_and_a_rare_element_is_limited() -> None:
    state = new_state(2)
    state.count = 1
    assert rms_normalised(torch.tensor([3.0, -0.1]), state, 0.0, 0.0).tolist() == [1.0, -1.0]
    for _ in range(400):
        rms_normalised(torch.tensor([1.0, 0.0]), state, 0.99, 1e-8)
        state.count += 1
    assert rms_normalised(torch.tensor([1.0, 1.0]), state, 0.99, 1e-8)[1] == 5.0


def test_only_hidden_matrices_are_orthogonalised() -> None:
    values = torch.randn(20, generator=torch.Generator().manual_seed(0))
    found = orthogonalised(values, (Matrix(4, torch.Size((3, 4))),))
    assert torch.equal(found[:4], values[:4])
    assert torch.equal(found[16:], values[16:])
    scales = torch.linalg.svdvals(found[4:16].view(3, 4))
    assert scales.max() < 2 * scales.min()


def test_the_loop_gives_the_simulators_loss() -> None:
    settings = SimulationSettings.model_validate(
        {"task": "digits", "batch_size": 16, "workers": 3, "eta": 0.1, "commits": 30, "compute_time": "exponential:1"}
    )
    found = train(Run("digits, mlp", "gem", 0.1, 3, EXPONENTIAL, 30), METHODS["gem"])
    assert found["loss"] == simulate(settings).evaluations[-1].test_loss


@pytest.mark.parametrize("optimizer", ["Adam", "Adadelta", "SGD"])
def test_one_worker_with_its_own_optimizer_is_the_script_alone(optimizer: str) -> None:
    losses = [
        train(Run("digits, mlp", f"{optimizer} {how}", 0.01, 1, ROUND_ROBIN, 40), METHODS[f"{optimizer} {how}"])["loss"]
        for how in ("alone", "moved")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_results_are_means_over_seeds_and_a_failed_run_counts() -> None:
    runs = [Run("digits, mlp", "gem", 0.1, 3, EXPONENTIAL, 30, seed) for seed in (0, 1)]
    both = found_in({runs[0].key: {"loss": 1.0}, runs[1].key: {"loss": 2.0}}, runs[0])
    failed = found_in({runs[0].key: {"loss": 1.0}, runs[1].key: {"failed": 1.0}}, runs[0])
    assert (both and (both.loss, both.seeds)) == (1.5, 2)
    assert failed is not None
    assert failed.loss == float("inf")
    assert gain(2.5, 2.0, 1.9) == pytest.approx(5 / 6)


def test_a_repeated_command_runs_nothing_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = [Run("digits, mlp", "gem", 0.1, workers, ROUND_ROBIN, 4) for workers in (1, 2)]
    trained: list[Run] = []
    monkeypatch.setattr(program, "stage", lambda name, seed: iter(runs))
    monkeypatch.setattr(program, "train", lambda run, method: trained.append(run) or {"loss": float("nan"), "pi": 1.0})
    output = tmp_path / "runs" / "default.json"
    monkeypatch.setattr("sys.argv", ["default_study", "adamw", "--output", str(output)])
    program.main()
    program.main()
    assert trained == runs
    assert json.loads(output.read_text("utf-8"))["runs"] == {run.key: {"pi": 1.0} for run in runs}


def test_an_excerpt_trains_on_all_samples_and_scores_on_some() -> None:
    task = create_task("text", SimulationSettings(task="text", context=16).task_options())
    excerpt = excerpt_of(task)
    assert len(excerpt.train) == len(task.train)
    for some, every, stride in ((excerpt.test, task.test, 3), (excerpt.train, task.train, 256)):
        assert np.array_equal(some.numbers(), every.numbers()[::stride])
    orders = [one.train.shuffled(np.random.default_rng(1)) for one in (excerpt, task)]
    assert np.array_equal(*orders)
