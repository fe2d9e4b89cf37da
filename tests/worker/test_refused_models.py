"""What cannot be trained is refused with the tensor's name and the fix: on joining, or at the step where it shows."""

import re
from typing import Any

import pytest
import torch
from gem_worker.errors import UnsupportedModelError
from gem_worker.flat_model import FlatModel
from gem_worker.model_tensors import inspect_model, refuse_non_finite
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from tests.worker.zoo import a_batch, make, perceptron


def refusal(model: nn.Module) -> str:
    before = memory(model)
    with pytest.raises(UnsupportedModelError) as caught:
        FlatModel(model)
    assert memory(model) == before  # a refused model is left as it was
    return str(caught.value)


def memory(model: nn.Module) -> dict[str, int]:
    """Where each parameter lies, of those that have an address."""
    return {
        name: value.data_ptr()
        for name, value in model.named_parameters()
        if not (value.is_meta or is_lazy(value) or value.is_sparse)
    }


class With(nn.Module):
    """A linear layer, and one more parameter or buffer under the name `odd`."""

    def __init__(self, *, parameter: Tensor | None = None, buffer: Tensor | None = None, **settings: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        if parameter is not None:
            self.odd = nn.Parameter(parameter, **settings)
        if buffer is not None:
            self.register_buffer("odd", buffer, **settings)


class ExtraState(With):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(2, 2)


def same_memory() -> nn.Module:
    model = With(parameter=torch.zeros(2, 2))
    model.odd.data = model.layer.weight.data
    return model


def in_frozen_memory(start: int, stop: int) -> nn.Module:
    """A trained tensor in memory of frozen ones, of which one is within another."""
    memory = torch.zeros(100)
    model = With(parameter=memory, requires_grad=False)
    model.short = nn.Parameter(memory[10:20], requires_grad=False)
    model.trained = nn.Parameter(memory[start:stop])
    return model


def with_cloning_hook() -> nn.Module:
    model = With()
    model.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(made=torch.zeros(1)))
    return model


def made_for_a_frozen_module(made: Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    model[1].register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update({f"{prefix}made": made})
    )
    return model


def hiding_a_parameter() -> nn.Module:
    def leave_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        del state["odd"]

    model = With(parameter=torch.zeros(2))
    model.register_state_dict_post_hook(leave_out)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (With(parameter=torch.zeros(2, dtype=torch.complex64)), r"^odd: is complex.*view_as_complex"),
        (With(buffer=torch.zeros(2, dtype=torch.complex64)), r"^odd: is complex"),
        (With(buffer=torch.zeros(2, dtype=torch.float8_e4m3fn)), r"^odd: type torch.float8_e4m3fn cannot travel"),
        (
            With(parameter=torch.zeros(2, dtype=torch.float8_e4m3fn)),
            r"^odd: parameters of type torch.float8.*\.float\(\)",
        ),
        (With(parameter=torch.zeros(2, 2).to_sparse()), r"^odd: is a sparse tensor.*to_dense"),
        (nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)), r"^1\.weight: is not initialised.*one batch"),
        (on_meta(), r"^weight: is on the meta device.*to_empty"),
        (With(parameter=torch.zeros(1).expand(4)), r"^odd: several of its elements share memory.*contiguous"),
        (same_memory(), r"(odd and layer\.weight|layer\.weight and odd): share memory.*same Parameter"),
        (in_frozen_memory(50, 60), r"^odd and trained: share memory"),
        (in_frozen_memory(0, 5), r"(odd and trained|trained and odd): share memory"),
        (ExtraState(), r"^_extra_state: the state_dict holds a dict"),
        (with_cloning_hook(), r"^made: state_dict\(\) makes this tensor anew"),
        (made_for_a_frozen_module(torch.zeros(2).to_sparse()), r"^1\.made: is a sparse tensor.*to_dense"),
        (made_for_a_frozen_module(torch.zeros(2, device="meta")), r"^1\.made: is on the meta device"),
        (hiding_a_parameter(), r"^odd: is a parameter but not in the state_dict"),
        (nn.Linear(2, 2).requires_grad_(False), r"^Linear: has no parameter with requires_grad=True"),
        (nn.Sequential(nn.ReLU()), r"^Sequential: has no parameter"),
    ],
    ids=lambda value: None if isinstance(value, nn.Module) else re.sub(r"\W+", "-", value)[:40],
)
def test_a_model_is_refused_with_the_name_and_the_fix(model: nn.Module, expected: str) -> None:
    assert re.search(expected, refusal(model))


@pytest.mark.skipif(not hasattr(torch, "quantize_per_tensor"), reason="this torch has no quantised tensors any more")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_model_with_a_quantised_tensor_is_refused() -> None:
    model = With(buffer=torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8))
    assert re.search(r"^odd: is quantised; train in floating point", refusal(model))


def test_a_model_on_several_devices_is_refused() -> None:
    model = With()
    with torch.device("meta"):
        model.add_module("other", nn.Linear(1, 1))
    assert "other.weight: is on the meta device" in refusal(model)


def test_first_parameters_that_are_not_finite_are_refused_by_name() -> None:
    model = With(parameter=torch.tensor([float("nan")]))
    _, tensors = inspect_model(model)
    with pytest.raises(UnsupportedModelError, match=r"^odd: holds values that are not finite; initialise it"):
        refuse_non_finite(tensors)


def changed(model: nn.Module, change: Any) -> str:
    flat = FlatModel(model)
    change(model)
    with pytest.raises(UnsupportedModelError) as caught:
        flat.collect_gradients()
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m[1].requires_grad_(True), r"^1\.weight: was frozen when the model joined"),
        (lambda m: setattr(m[3], "bias", nn.Parameter(torch.zeros(10))), r"^3\.bias: another Parameter object"),
        (lambda m: setattr(m[3], "extra", nn.Parameter(torch.zeros(1))), r"^3: gained or lost a parameter"),
        (lambda m: m.append(nn.Linear(1, 1)), r"^the model: its submodules changed"),
        (lambda m: m.__setitem__(1, nn.Linear(64, 32)), r"^the model: its submodules changed"),
        (lambda m: m.double(), r"^3\.weight: was float32\[10, 32\] on cpu.* is float64\[10, 32\] on cpu now"),
        (
            lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
            r"another Parameter object",
        ),
    ],
)
def test_a_change_after_joining_is_refused_at_the_next_step(change: Any, expected: str) -> None:
    assert re.search(expected, changed(make("frozen-layer"), change))


def test_freezing_a_trained_layer_for_a_while_is_allowed() -> None:
    model = perceptron()
    flat = FlatModel(model)
    model[1].requires_grad_(False)
    inputs, labels = a_batch()
    functional.cross_entropy(model(inputs), labels).backward()
    flat.collect_gradients()
    assert not model[1].weight.grad.any()
    assert model[3].weight.grad.any()
