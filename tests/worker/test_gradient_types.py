"""Parameters whose gradients have another type (`grad_dtype`): float32 sums of bfloat16 gradients, for one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer, UnsupportedModelError
from gem_worker.flat_model import FlatModel
from torch import Tensor, nn
from torch.nn import functional

from tests.worker.serving import ServerThread
from tests.worker.zoo import a_batch

IMPATIENT = ClientSettings(connect_timeout=20)
BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


class Narrow(nn.Module):
    """Linear layers in one type, with gradients in the type that `choose` says for a parameter's name."""

    def __init__(self, dtype: torch.dtype, choose: Callable[[str], torch.dtype | None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(64, 32)
        self.output = nn.Linear(32, 10)
        self.to(dtype)
        for name, parameter in self.named_parameters():
            parameter.grad_dtype = choose(name)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.hidden(inputs.flatten(1).to(self.hidden.weight.dtype))
        return self.output(torch.relu(hidden)).float()


def only_weights(name: str) -> torch.dtype:
    return FLOAT32 if name.endswith("weight") else BFLOAT16


MODELS: dict[str, Callable[[], Narrow]] = {
    "bfloat16 with float32": lambda: Narrow(BFLOAT16, lambda name: FLOAT32),
    "bfloat16, some with float32": lambda: Narrow(BFLOAT16, only_weights),
    "bfloat16 with any type": lambda: Narrow(BFLOAT16, lambda name: None),
    "float16 with float32": lambda: Narrow(FLOAT16, lambda name: FLOAT32),
    "float32 with bfloat16": lambda: Narrow(FLOAT32, lambda name: BFLOAT16),
}


def backward(model: nn.Module, seed: int = 0, scale: float = 1.0) -> Tensor:
    inputs, labels = a_batch(seed=seed)
    loss = functional.cross_entropy(model(inputs), labels)
    (loss * scale).backward()
    return loss.detach()


def gradients_of(flat: FlatModel) -> dict[str, Tensor]:
    out = torch.empty(flat.layout.parameter_count)
    flat.read_gradients(out)
    return {
        one.name: out[one.start : one.start + one.tensor.numel()].view(one.tensor.shape).clone() for one in flat.trained
    }


@pytest.mark.parametrize("resets", [False, True], ids=["zeroed", "set to None"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_summed_in_their_own_type_as_autograd_does(kind: str, resets: bool) -> None:
    reference, model = MODELS[kind](), MODELS[kind]()
    flat = FlatModel(model)
    for step in range(3):
        reference.zero_grad()
        flat.zero_gradients()
        if resets:
            model.zero_grad()
        for seed in range(4):
            backward(reference, 4 * step + seed)
            backward(model, 4 * step + seed)
        flat.collect_gradients()
        for name, gradient in gradients_of(flat).items():
            parameter = reference.get_parameter(name)
            assert parameter.grad is not None
            own = model.get_parameter(name).grad
            assert own is not None
            if parameter.grad_dtype is not None:
                assert own.dtype is parameter.grad_dtype
                assert torch.equal(gradient, parameter.grad.float())
            else:  # here the sum is float32, and autograd's has the type of the first gradient
                torch.testing.assert_close(gradient, parameter.grad.float(), rtol=0.02, atol=1e-3)


def test_float32_gradients_keep_what_bfloat16_would_round_away() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    model.weight.grad_dtype = FLOAT32
    flat = FlatModel(model)
    for _ in range(300):  # bfloat16 counts to 256 only
        model(torch.ones(1, 1, dtype=BFLOAT16)).sum().backward()
    flat.collect_gradients()
    assert gradients_of(flat)["weight"].item() == 300


def last_loss(model: nn.Module, run: dict[str, Any], **worker: Any) -> float:
    """The loss after 15 steps on one batch."""
    with (
        ServerThread(**({"eta": 0.05} | run)) as server,
        ParameterServer(server.address, model, name="w", client_settings=IMPATIENT, **worker) as ps,
    ):
        for _ in range(15):
            ps.step(backward(model))
    return float(backward(model))


@pytest.mark.parametrize(
    ("run", "worker"),
    [
        ({}, {}),
        ({}, {"delta_wire": "bfloat16"}),
        ({"clip_norm": 1.0, "direction": "rms", "eta": 0.002}, {}),
        ({"rule": "agn", "rule_settings": "local_steps=3", "eta": 0.2}, {}),
    ],
    ids=["", "bfloat16", "clip and rms", "local steps"],
)
def test_models_with_gradients_of_another_type_train_as_the_float32_model_does(
    run: dict[str, Any], worker: dict[str, Any]
) -> None:
    plain = Narrow(FLOAT32, lambda name: FLOAT32)
    before = float(backward(plain))
    plain.zero_grad()
    expected = last_loss(plain, run, **worker)
    assert expected < 0.95 * before
    for kind, make in MODELS.items():
        assert last_loss(make(), run, **worker) == pytest.approx(expected, rel=0.06), kind


def test_a_grad_scaler_unscales_float32_gradients_of_float16_parameters_and_skips_an_overflow() -> None:
    model, scaler = MODELS["float16 with float32"](), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with (
        ServerThread(eta=0.05) as server,
        ParameterServer(server.address, model, name="w", client_settings=IMPATIENT) as ps,
    ):
        reference = MODELS["float16 with float32"]()
        backward(reference)
        scaler.scale(torch.zeros(()))  # a scaler makes its scale on first use
        backward(model, scale=scaler.get_scale())
        ps.unscale_(scaler)
        for name, parameter in model.named_parameters():
            expected = reference.get_parameter(name).grad
            assert parameter.grad is not None
            assert expected is not None
            torch.testing.assert_close(parameter.grad, expected, rtol=0.02, atol=1e-3)
        assert not ps.step(scaler=scaler).skipped
        backward(model)
        assert model.hidden.weight.grad is not None
        model.hidden.weight.grad[0, 0] = float("inf")
        assert ps.step(scaler=scaler).skipped
        assert scaler.get_scale() == 512


def test_an_optimizer_of_ones_own_steps_on_them() -> None:
    losses = []
    for make in (lambda: Narrow(FLOAT32, lambda name: FLOAT32), *MODELS.values()):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses.append(last_loss(model, {"rule": "downpour"}, optimizer=optimizer, every=2))
    assert losses[1:] == pytest.approx([losses[0]] * len(MODELS), rel=0.02)


def test_another_type_chosen_after_joining_is_refused_with_the_fix() -> None:
    model = nn.Linear(64, 10).bfloat16()
    flat = FlatModel(model)
    for parameter in model.parameters():
        parameter.grad = None
        parameter.grad_dtype = FLOAT32
        parameter.grad = torch.zeros(parameter.shape)
    with pytest.raises(UnsupportedModelError, match=r"weight: .*set grad_dtype before ParameterServer\(...\)"):
        flat.collect_gradients()
