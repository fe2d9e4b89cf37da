"""What a script changes in the parameters itself between steps: one warning without `optimizer=`, committed with it."""

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.worker.loops import backward
from tests.worker.serving import ServerThread
from tests.worker.zoo import ZOO, make

IMPATIENT = ClientSettings(connect_timeout=20)
# More than two samples apart, and enough for a sample of each tensor of a small model.
STEPS = 40


@pytest.fixture(params=["stream", "shared memory"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    place = {"shared_memory_socket": tmp_path / "memory"} if request.param == "shared memory" else {}
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    with ServerThread(eta=0.01, data_dir=tmp_path / "state", **place) as running:
        yield running


@pytest.fixture
def stream() -> Iterator[ServerThread]:
    with ServerThread(eta=0.01) as running:
        yield running


def connect(server: ServerThread, model: nn.Module, **settings: Any) -> ParameterServer:
    return ParameterServer(server.address, model, client_settings=IMPATIENT, **({"name": "w"} | settings))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The worker's: the server in this process may warn of a connection that came to its port by chance."""
    found = [one for one in caplog.records if one.name.startswith("gem_worker")]
    return [one.getMessage() for one in found if one.levelno >= logging.WARNING]


def train(ps: ParameterServer, steps: int, change: Callable[[nn.Module], object] = lambda model: None) -> None:
    for seed in range(steps):
        ps.step(backward(ps.model, seed))
        change(ps.model)


@torch.no_grad()
def halve(model: nn.Module) -> None:
    model.get_parameter("1.weight").mul_(0.5)


def halve_data(model: nn.Module) -> None:
    model.get_parameter("1.weight").data.mul_(0.5)


def assign_data(model: nn.Module) -> None:
    weight = model.get_parameter("1.weight")
    weight.data = weight.data / weight.data.norm()


def load(model: nn.Module) -> None:
    other = {name: value * 0.5 if name == "1.weight" else value for name, value in model.state_dict().items()}
    model.load_state_dict(other)


def write_with_numpy(model: nn.Module) -> None:
    array = model.get_parameter("1.weight").detach().numpy()
    array.clip(-0.01, 0.01, out=array)


CHANGES = [halve, halve_data, assign_data, load, write_with_numpy]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_steps_is_warned_of_once_with_the_tensors_name(
    change: Callable[[nn.Module], object], server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server, make("perceptron")) as ps:
        train(ps, STEPS, change)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("1.weight was changed by the script between two steps. This has no effect on the run")
    assert "torch.nn.utils.parametrize" in warning


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_joining_and_the_first_step_is_told_where_it_belongs(
    change: Callable[[nn.Module], object], server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server, make("perceptron")) as ps:
        change(ps.model)
        train(ps, 1)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("1.weight was changed by the script after the model joined. ")
    assert "Initialise and load weights before ParameterServer(...)" in warning


@pytest.mark.parametrize("kind", ["mixed-types", "channels-last", "tied-weights"])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_one_change_of_many_tensors_is_noticed_in_every_memory_format_and_wire_type(
    kind: str, wire: Any, stream: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = make(kind)
    with connect(stream, model, parameter_wire=wire) as ps:
        train(ps, 7)
        assert warnings_of(caplog) == []
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.25)
        train(ps, 2)
    (warning,) = warnings_of(caplog)
    count = len(list(model.parameters()))
    assert f" and {count - 1} other tensors were changed by the script between two steps." in warning


def test_data_of_a_small_tensor_beside_a_large_one_is_sampled_too(
    stream: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(400, 500), nn.Linear(500, 1, bias=False), nn.PReLU())
    with connect(stream, model) as ps:
        for _ in range(100):
            model(torch.randn(2, 400)).sum().backward()
            ps.step()
            model.get_parameter("2.weight").data.fill_(0.25)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("2.weight was changed")


def test_data_is_sampled_in_each_group_of_types(stream: ServerThread, caplog: pytest.LogCaptureFixture) -> None:
    model = make("mixed-types")
    with connect(stream, model) as ps:
        for seed in range(100):
            ps.step(backward(model, seed))
            model.get_parameter("second.bias").data.fill_(0.25)  # bfloat16, the last one in the layout
    (warning,) = warnings_of(caplog)
    assert warning.startswith("second.bias was changed")


def swap_and_swap_back(model: nn.Module) -> None:
    """As an averaged model is evaluated."""
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: torch.zeros_like(value) for name, value in own.items()})
    model.load_state_dict(own)


@torch.no_grad()
def perturb_and_subtract(model: nn.Module) -> None:
    """As sharpness-aware minimisation does."""
    perturbations = [0.05 * torch.randn_like(one) for one in model.parameters()]
    for one, perturbation in zip(model.parameters(), perturbations, strict=True):
        one.add_(perturbation)
    for one, perturbation in zip(model.parameters(), perturbations, strict=True):
        one.sub_(perturbation)


def move_and_convert(model: nn.Module) -> None:
    model.to("cpu").double().float().to(memory_format=torch.channels_last).to(memory_format=torch.contiguous_format)


def copy_and_save(model: nn.Module) -> None:
    copy.deepcopy(model).load_state_dict(model.state_dict())
    model.train().requires_grad_(True)


def replace_memory(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


@pytest.mark.parametrize(
    "change", [swap_and_swap_back, perturb_and_subtract, move_and_convert, copy_and_save, replace_memory]
)
def test_what_leaves_the_values_as_they_are_is_not_warned_of(
    change: Callable[[nn.Module], object], server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server, make("perceptron")) as ps:
        train(ps, STEPS, change)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["mixed-types", "channels-last"])
def test_what_was_restored_is_not_warned_of_in_any_type(
    kind: str, wire: Any, stream: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(stream, make(kind), parameter_wire=wire, delta_wire="bfloat16") as ps:
        train(ps, 8, swap_and_swap_back)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("kind", ZOO)
def test_training_a_model_of_any_kind_warns_of_nothing(
    kind: str, stream: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(stream, make(kind)) as ps:
        train(ps, 6)
    assert not [one for one in warnings_of(caplog) if "changed by the script" in one]


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, parametrizations.weight_norm, nn.utils.spectral_norm])
def test_weights_that_forward_normalises_are_the_fix_and_no_change(
    norm: Callable[[nn.Module], nn.Module], stream: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Flatten(), norm(nn.Linear(64, 10)))
    with connect(stream, model) as ps:
        train(ps, 20)
    assert warnings_of(caplog) == []


def test_an_embedding_with_max_norm_has_a_warning_of_its_own_and_hides_no_other(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Linear(8, 1))

    def steps(count: int) -> None:
        for seed in range(count):
            random = torch.Generator().manual_seed(seed)
            model(torch.randint(20, (4,), generator=random)).sum().backward()
            ps.step()

    with connect(server, model) as ps:
        steps(STEPS)
        (warning,) = warnings_of(caplog)
        assert warning.startswith("0.weight: max_norm shortens rows of this embedding in each forward, but only in")
        with torch.no_grad():
            model.get_parameter("1.weight").clamp_(-0.01, 0.01)
        steps(STEPS)
    assert [one.split(" was ")[0] for one in warnings_of(caplog)[1:]] == ["1.weight"]


def test_what_an_optimizer_changed_is_only_the_optimizers_warning(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with connect(server, model) as ps:
        for seed in range(5):
            backward(model, seed)
            optimizer.step()
            ps.step()
    (warning,) = warnings_of(caplog)
    assert warning.startswith("AdamW.step() has no effect on the run")


def test_a_change_between_local_steps_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=4", eta=0.01) as server:
        with connect(server, make("perceptron")) as ps:
            train(ps, 12)
            assert warnings_of(caplog) == []
            train(ps, 12, swap_and_swap_back)
            assert warnings_of(caplog) == []
        with connect(server, make("perceptron")) as ps:
            train(ps, 12, halve)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("1.weight was changed")


@pytest.mark.parametrize("every", [1, 3])
def test_with_an_optimizer_changes_are_committed_whenever_they_are_made(
    every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first step, directly after an exchange, and between two steps of one exchange."""
    model, alone = make("perceptron"), make("perceptron")

    @torch.no_grad()
    def constrain(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.clamp_(-0.05, 0.05)

    def steps(model: nn.Module, step: Callable[[Tensor], object]) -> None:
        constrain(model)
        for seed in range(6):
            step(backward(model, seed))
            constrain(model)

    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (model, alone)]

    def step_alone(loss: Tensor) -> None:
        optimizers[1].step()
        optimizers[1].zero_grad()

    with ServerThread(rule="downpour", data_dir=tmp_path / "state") as server:
        with connect(server, model, optimizer=optimizers[0], every=every) as ps:
            steps(model, ps.step)
            ps.step(backward(model))
            ps.exchange()
        server.stop()
        served = load_file(server.checkpoint)
    steps(alone, step_alone)
    step_alone(backward(alone))
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(served[name], parameter.detach(), rtol=0, atol=1e-6)
    assert warnings_of(caplog) == []
