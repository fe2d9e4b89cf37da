"""What a simulation learns, and that it does so again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gem_simulator import SimulationError, SimulationSettings, read_recorded, simulate
from gem_simulator.workload import Workload
from gem_worker.score import score
from gem_worker.tasks import Task, TaskOptions, create_task
from pydantic import ValidationError

from gem_core import create_rule
from gem_trace import replay
from gem_trace.format import encode


@pytest.fixture(scope="module")
def digits() -> Task:
    return create_task("digits", TaskOptions())


def settings(**values: object) -> SimulationSettings:
    return SimulationSettings(**({"workers": 3, "steps": 6, "batch_size": 16} | values))  # type: ignore[arg-type]


def test_the_same_settings_give_the_same_parameters(digits: Task) -> None:
    chosen = settings(model="cnn", compute_time="lognormal:1,0.5", network_time=0.1)
    first, second = (simulate(chosen, task=digits) for _ in range(2))
    assert first.digest == second.digest
    assert first.summary() | {"peak_memory_bytes": 0} == second.summary() | {"peak_memory_bytes": 0}
    assert simulate(chosen.model_copy(update={"seed": 1}), task=digits).digest != first.digest


def test_torchs_own_numbers_and_threads_are_left_as_they_were(digits: Task) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    simulate(settings(model="cnn", steps=1), task=digits)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_workers_learn_digits(digits: Task) -> None:
    result = simulate(
        settings(workers=8, steps=150, batch_size=64, order="round-robin", evaluate_every=300), task=digits
    )
    assert result.final.accuracy > 0.93
    losses = [one.training_loss for one in result.evaluations]
    assert losses == sorted(losses, reverse=True)
    assert [one.commits for one in result.evaluations] == [300, 600, 900, 1200]
    assert set(result.history.column("staleness")[8:]) == {7.0}
    assert result.jain_index() == 1.0
    frame = result.history.to_pandas()
    assert len(frame) == 1200
    assert frame["loss"].to_list() == result.history.column("loss").tolist()


def test_one_worker_without_momentum_is_sgd(digits: Task) -> None:
    """With mu = 0 and n = 1 GEM is plain SGD (docs/design.md, section 2), so torch's own optimiser gives the same."""
    steps = 12
    result = simulate(settings(workers=1, steps=steps, rule_settings={"momentum": 0}), task=digits)
    workload = Workload(digits, "mlp", 16, seed=0)
    optimiser = torch.optim.SGD(workload.model.parameters(), lr=0.05)
    hand = workload.hand(0)
    for _ in range(steps):
        _, numbers = next(hand.batches)
        inputs, labels = digits.train.batch(numbers)
        optimiser.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(workload.model(inputs), labels).backward()
        optimiser.step()
    loss, _ = score(workload.model, digits.train, torch.device("cpu"))
    assert result.final.training_loss == pytest.approx(loss, rel=1e-5)


def test_a_diverging_run_ends_and_says_so(digits: Task) -> None:
    result = simulate(settings(rule="downpour", eta=1e25, steps=200), task=digits)
    assert result.diverged
    assert result.commits < 600
    assert result.summary()["diverged"] is True


def test_narrow_types_change_a_little(digits: Task) -> None:
    wide = simulate(settings(steps=30), task=digits)
    narrow = simulate(settings(steps=30, delta_wire="bfloat16", parameter_wire="bfloat16"), task=digits)
    assert narrow.digest != wide.digest
    assert narrow.final.training_loss == pytest.approx(wide.final.training_loss, rel=0.05)


def test_a_simulations_trace_is_replayed_to_the_same_parameters(digits: Task, tmp_path: Path) -> None:
    trace = tmp_path / "simulated.trace"
    chosen = settings(model="cnn", compute_time="exponential:1", service_time=0.1, join="1@3", die="2@4")
    result = simulate(chosen, task=digits, record=trace)
    replayed = replay(trace)
    assert (replayed.compared_end, replayed.end_digest) == (True, result.digest)
    assert replayed.commits == result.commits
    assert read_recorded(trace).workers == 3


def test_a_trace_of_another_format_cannot_be_followed(tmp_path: Path) -> None:
    """Earlier ones had settings, such as a warm-up of eta, that would not be noticed now."""
    trace = tmp_path / "old.trace"
    trace.write_bytes(b"".join(map(bytes, encode({"event": "started", "format": "gemps-trace-1"}))))
    with pytest.raises(SimulationError, match="its format is gemps-trace-1, this version of gemps reads gemps-trace-2"):
        read_recorded(trace)


def test_recorded_compute_times_can_be_drawn_from(digits: Task, tmp_path: Path) -> None:
    trace = tmp_path / "simulated.trace"
    simulate(settings(compute_time="speeds:1,2,5"), task=digits, record=trace)
    again = simulate(settings(compute_time=f"trace:{trace}"), task=digits)
    assert again.history.column("at")[-1] == 30.0
    with pytest.raises(ValidationError, match="cannot be read"):
        settings(compute_time=f"trace:{tmp_path / 'nothing'}")


def test_the_papers_worker_goes_on_without_its_own_update_which_is_its_next_drift(digits: Task) -> None:
    paper = simulate(settings(workers=1, exchange="paper"), task=digits)
    service = simulate(settings(workers=1), task=digits)
    assert np.all(service.history.column("drift_norm") == 0.0)
    drifts, updates = paper.history.column("drift_norm"), paper.history.column("update_norm")
    assert drifts[0] == 0.0
    np.testing.assert_allclose(drifts[1:], updates[:-1], rtol=1e-4)


def test_the_original_exchange_has_the_services_arithmetic_in_more_time(digits: Task) -> None:
    chosen = settings(order="round-robin", network_time=0.5)
    original = simulate(chosen.model_copy(update={"exchange": "original"}), task=digits)
    service = simulate(chosen, task=digits)
    assert original.digest == service.digest
    assert original.history.column("at")[-1] > service.history.column("at")[-1]


@pytest.mark.parametrize("rule", ["easgd", "dana", "delayed-nesterov", "fedbuff", "ace"])
def test_a_rule_that_only_a_server_can_apply_refuses_the_papers_exchange(digits: Task, rule: str) -> None:
    with pytest.raises(SimulationError, match=f"rule {rule} needs the server"):
        simulate(settings(exchange="paper", rule=rule), task=digits)


def test_local_steps_add_up_to_what_they_would_have_been_alone(digits: Task) -> None:
    """One worker, AGN with one local step is SGD; two local steps commit the mean of two gradients."""
    one = simulate(settings(workers=1, rule="agn", rule_settings={"local_steps": 1}), task=digits)
    sgd = simulate(settings(workers=1, rule="downpour"), task=digits)
    assert one.digest == sgd.digest
    sum_of_two = simulate(settings(workers=1, steps=1, rule="agn", rule_settings={"local_steps": 2}), task=digits)
    workload = Workload(digits, "mlp", 16, seed=0)
    start, buffers = workload.first()
    hand = workload.hand(0)
    first = workload.step(hand, start, buffers, 0.05)[0].values.copy()
    second = workload.step(hand, start + first, buffers, 0.05)[0].values.copy()
    np.testing.assert_allclose(sum_of_two.parameters - start, (first + second) / 2, rtol=1e-3, atol=1e-7)


def test_settings_that_make_no_sense_are_refused() -> None:
    for values, why in (
        ({"slow": "3x2"}, "names worker 3, and there are 3"),
        ({"die": "1"}, "is not understood"),
        ({"slow": "2-1x2"}, "names no worker"),
        ({"slow": "0x4,0x2"}, "was named before"),
        ({"slow": "0x0"}, "must be more than 0"),
        ({"join": "1@5", "die": "1@5"}, "worker 1 would die at 5 and join at 5"),
        ({"compute_time": "constant:0"}, "must be finite and more than 0"),
        ({"compute_time": "gauss:1"}, "is not known"),
        ({"rule": "gme"}, "there is no update rule 'gme'"),
        ({"rule_settings": "kappa"}, "is not NAME=VALUE"),
    ):
        with pytest.raises(ValidationError, match=why):
            settings(**values)


def test_a_simulation_without_an_end_does_not_begin(digits: Task) -> None:
    with pytest.raises(SimulationError, match="give --steps, --commits or --seconds"):
        simulate(settings(steps=0), task=digits)


def test_a_trace_that_is_there_is_not_written_over(digits: Task, tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    trace.write_bytes(b"mine")
    with pytest.raises(SimulationError, match="is there already"):
        simulate(settings(), task=digits, record=trace)
    with pytest.raises(SimulationError, match="choose --exchange service"):
        simulate(settings(exchange="paper"), task=digits, record=tmp_path / "b.trace")
    assert trace.read_bytes() == b"mine"
    assert not (tmp_path / "b.trace").exists()


def test_rules_can_be_given_as_objects_and_are_what_the_result_names(digits: Task) -> None:
    given = simulate(settings(), task=digits, rule=create_rule("gem", kappa=2.0))
    named = simulate(settings(rule_settings="kappa=2"), task=digits)
    assert given.digest == named.digest
    assert given.settings == named.settings
    assert given.settings["rule_settings"]["kappa"] == 2.0
    downpour = simulate(settings(), task=digits, rule=create_rule("downpour"))
    assert downpour.settings["rule"] == "downpour"


def test_local_steps_take_their_time(digits: Task) -> None:
    result = simulate(settings(rule="agn", rule_settings="local_steps=4", steps=0, seconds=20), task=digits)
    assert result.commits == 3 * 5
    assert set(result.history.column("sequence")) == {1, 2, 3, 4, 5}


def test_a_column_that_is_not_there_is_told_with_those_that_are(digits: Task) -> None:
    with pytest.raises(KeyError, match="no column 'stale'; there are at, waited, rank"):
        simulate(settings(steps=1), task=digits).history.column("stale")
