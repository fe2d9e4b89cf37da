"""FlatModel: parameters and gradients are views of flat memory, and stay so whatever a training loop does."""

import copy
import hashlib
import io
import pickle
import weakref
from pathlib import Path

import accelerate
import pytest
import safetensors.torch
import torch
from gem_worker.client.messages import layout_of, layout_to_wire
from gem_worker.errors import UnsupportedModelError
from gem_worker.flat_model import FlatModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from gem_core.layout import TensorKind
from tests.worker.loops import backward
from tests.worker.zoo import ZOO, InOwnType, OddBuffers, TiedWeights, a_batch, make


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients as PyTorch alone has them; zeros where it has none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def collected(flat: FlatModel) -> dict[str, Tensor]:
    """What `read_gradients` gives, cut up by the layout."""
    out = torch.full((flat.layout.parameter_count,), float("nan"))
    flat.read_gradients(out)
    return cut(flat, out)


def cut(flat: FlatModel, values: Tensor) -> dict[str, Tensor]:
    pieces, offset = {}, 0
    for spec in flat.layout.parameters:
        pieces[spec.name] = values[offset : offset + spec.elements].view(spec.shape)
        offset += spec.elements
    return pieces


def assert_flat(flat: FlatModel) -> None:
    """Every trained parameter and its gradient lie in the flat buffers."""
    for p in flat.model.parameters():
        if p.requires_grad:
            assert p.grad is not None
            assert any(lies_in(p, group.parameters) for group in flat.groups)
            assert any(lies_in(p.grad, group.gradients) for group in flat.groups)


def lies_in(tensor: Tensor, flat: Tensor) -> bool:
    end = flat.data_ptr() + flat.numel() * flat.element_size()
    return flat.data_ptr() <= tensor.data_ptr() < end


@pytest.mark.parametrize("kind", ZOO)
def test_flattening_changes_no_value_name_identity_or_memory_format(kind: str) -> None:
    model = make(kind)
    before = {name: (value, value.detach().clone()) for name, value in model.state_dict(keep_vars=True).items()}
    strides = {name: value.stride() for name, (value, _) in before.items()}
    FlatModel(model)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    for name, (tensor, value) in before.items():
        assert after[name] is tensor
        assert torch.equal(after[name], value)
        assert after[name].stride() == strides[name]


@pytest.mark.parametrize("kind", ZOO)
def test_flat_gradients_are_those_of_autograd_and_views_survive_many_steps(kind: str) -> None:
    reference, model = make(kind), make(kind)
    flat = FlatModel(model)
    for step in range(3):
        for one in (reference, model):
            backward(one, seed=step)
        expected = gradients_of(reference)
        reference.zero_grad()
        flat.collect_gradients()
        assert_flat(flat)
        for name, piece in collected(flat).items():
            assert torch.equal(piece, expected[name].float()), name
        flat.zero_gradients()
        assert all(float(p.grad.abs().sum()) == 0 for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", ZOO)
def test_zero_grad_to_none_between_steps_loses_no_gradient(kind: str) -> None:
    reference, model = make(kind), make(kind)
    flat = FlatModel(model)
    for step in range(3):
        for one in (reference, model):
            one.zero_grad(set_to_none=True)
            backward(one, seed=step)
        expected = gradients_of(reference)
        flat.collect_gradients()
        assert_flat(flat)
        for name, piece in collected(flat).items():
            assert torch.equal(piece, expected[name].float()), name


@pytest.mark.parametrize("kind", ZOO)
def test_parameters_written_flat_are_what_the_model_computes_with(kind: str) -> None:
    source, target = make(kind, seed=1), make(kind, seed=2)
    values = torch.empty(FlatModel(copy.deepcopy(source)).layout.parameter_count)
    FlatModel(source).read_parameters(values)
    flat = FlatModel(target)
    flat.write_parameters(values)
    for name, piece in cut(flat, values).items():
        assert torch.equal(target.get_parameter(name).float(), piece), name
    assert_flat(flat)


@pytest.mark.parametrize("kind", ZOO)
def test_movement_is_the_parameters_in_float32_minus_where_they_were(kind: str) -> None:
    flat = FlatModel(make(kind, seed=1))
    values, movement = (torch.empty(flat.layout.parameter_count) for _ in range(2))
    flat.read_parameters(values)
    since = torch.randn(len(values))
    flat.read_movement(since, movement)
    assert torch.equal(movement, values - since)


def test_gradients_that_were_set_to_none_and_not_made_again_count_as_zero() -> None:
    model = make("perceptron")
    flat = FlatModel(model)
    backward(model)
    model.zero_grad(set_to_none=True)
    flat.collect_gradients()
    assert all(not piece.any() for piece in collected(flat).values())


def test_several_backwards_add_up() -> None:
    reference, model = make("perceptron"), make("perceptron")
    flat = FlatModel(model)
    for seed in (1, 2, 3):
        backward(reference, seed)
        backward(model, seed)
    flat.collect_gradients()
    for name, piece in collected(flat).items():
        assert torch.equal(piece, reference.get_parameter(name).grad), name


def test_a_gradient_from_before_flattening_is_dropped() -> None:
    model = make("perceptron")
    backward(model)
    flat = FlatModel(model)
    flat.collect_gradients()
    assert all(not piece.any() for piece in collected(flat).values())


def test_a_gradient_made_with_create_graph_is_collected() -> None:
    reference, model = make("perceptron"), make("perceptron")
    flat = FlatModel(model)
    for one in (reference, model):
        inputs, labels = a_batch()
        functional.cross_entropy(one(inputs), labels).backward(create_graph=True)
    flat.collect_gradients()
    assert_flat(flat)
    for name, piece in collected(flat).items():
        assert torch.equal(piece, reference.get_parameter(name).grad.detach()), name


def test_float32_parameters_come_first_and_are_one_contiguous_piece() -> None:
    flat = FlatModel(make("mixed-types"))
    names = [spec.name for spec in flat.layout.parameters]
    assert names == ["third.weight", "third.bias", "first.weight", "first.bias", "second.weight", "second.bias"]
    assert [group.parameters.dtype for group in flat.groups] == [torch.float32, torch.float64, torch.bfloat16]
    assert [(group.start, group.stop) for group in flat.groups] == [(0, 170), (170, 2250), (2250, 2778)]


def test_tied_weights_make_one_tensor_with_an_alias() -> None:
    flat = FlatModel(TiedWeights())
    by_name = {spec.name: spec for spec in flat.layout.tensors}
    assert by_name["first.weight"].aliases == ("second.weight",)
    assert "second.weight" not in by_name


def test_an_embedding_says_so_also_where_its_weight_is_tied() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7))
    model[2].weight = model[0].weight
    roles = {spec.name: spec.role.value for spec in FlatModel(model).layout.tensors}
    assert roles == {"0.weight": "embedding", "1.weight": "matrix", "1.bias": "vector", "2.bias": "vector"}
    assert layout_of(layout_to_wire(FlatModel(model).layout)).tensors[0].is_embedding


def test_frozen_layers_are_named_by_digest_and_stay_where_they_are() -> None:
    model = make("frozen-layer")
    before = model.get_parameter("1.weight").data_ptr()
    flat = FlatModel(model)
    frozen = {spec.name: spec.sha256 for spec in flat.layout.tensors if spec.kind is TensorKind.FROZEN}
    assert frozen == {
        name: hashlib.sha256(model.get_parameter(name).detach().numpy().tobytes()).digest()
        for name in ("1.weight", "1.bias")
    }
    assert model.get_parameter("1.weight").data_ptr() == before
    assert model.get_parameter("1.weight").grad is None


def test_buffers_of_every_type_are_read_and_written_and_non_persistent_ones_stay_local() -> None:
    model = OddBuffers()
    flat = FlatModel(model)
    assert [spec.name for spec in flat.layout.buffers] == ["average", "counter", "flags"]
    assert flat.layout.buffer_bytes == 24 + 8 + 3
    backward(model)
    flat.collect_gradients()
    assert_flat(flat)
    sent = torch.empty(24 + 8 + 3, dtype=torch.uint8)
    flat.buffers.read(sent)
    assert sent[:24].view(torch.float64).tolist() == [0.25] * 3
    assert sent[24:32].view(torch.int64).tolist() == [1]
    assert sent[32:].view(torch.bool).tolist() == [True, False, True]
    sent[:24].view(torch.float64).fill_(7)
    flat.buffers.write(sent)
    assert model.average.tolist() == [7.0] * 3
    assert (model.counter.item(), model.flags.tolist()) == (1, [True, False, True])


@pytest.mark.parametrize("kind", ["batch-norm", "odd-buffers"])
def test_torch_saves_a_flat_model(kind: str) -> None:
    model = make(kind)
    FlatModel(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    for name, value in torch.load(file).items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_load_state_dict_writes_into_the_flat_memory() -> None:
    model, other = make("batch-norm", seed=1), make("batch-norm", seed=2)
    flat = FlatModel(model)
    model.load_state_dict(other.state_dict())
    flat.collect_gradients()
    assert_flat(flat)
    values = torch.empty(flat.layout.parameter_count)
    flat.read_parameters(values)
    for name, piece in cut(flat, values).items():
        assert torch.equal(piece, other.get_parameter(name)), name


def test_memory_that_was_replaced_under_a_parameter_is_taken_back_with_its_values() -> None:
    model = make("perceptron")
    flat = FlatModel(model)
    parameter = model.get_parameter("1.weight")
    parameter.data = torch.full_like(parameter, 3.0)
    flat.collect_gradients()
    assert_flat(flat)
    assert bool((parameter == 3).all())


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_that_was_replaced_under_a_gradient_is_taken_back_with_its_values(channels_last: bool) -> None:
    model, other = (make("channels-last").to(memory_format=torch.contiguous_format) for _ in range(2))
    flat = FlatModel(model)
    for step in range(3):
        backward(model, step)
        backward(other, step)
        if channels_last:
            model.to(memory_format=torch.channels_last)
        else:
            model.double().float()
        for p in [*model.parameters(), *other.parameters()]:
            assert p.grad is not None
            p.grad.data = p.grad.data * 0.5
        flat.collect_gradients()
        assert_flat(flat)
        for name, piece in collected(flat).items():
            torch.testing.assert_close(piece, other.get_parameter(name).grad, rtol=1e-5, atol=1e-6)
        flat.zero_gradients()
        other.zero_grad()


def test_memory_that_was_replaced_under_the_gradients_of_several_types_is_taken_back() -> None:
    model, other = make("mixed-types"), make("mixed-types")
    flat = FlatModel(model)
    for step in range(3):
        for one in (model, other):
            backward(one, step)
            for p in one.parameters():
                assert p.grad is not None
                p.grad.data = p.grad.data * 0.5
        flat.collect_gradients()
        assert_flat(flat)
        for name, piece in collected(flat).items():
            gradient = other.get_parameter(name).grad
            assert gradient is not None
            assert torch.equal(piece, gradient.float()), name
        flat.zero_gradients()
        other.zero_grad()


def test_a_gradient_that_was_assigned_is_copied_and_one_of_the_same_memory_is_not_lost() -> None:
    model = make("perceptron")
    flat = FlatModel(model)
    weight, bias = model.get_parameter("1.weight"), model.get_parameter("1.bias")
    weight.grad = torch.full_like(weight, 2.0)
    assert bias.grad is not None
    bias.grad.fill_(3.0)
    bias.grad = bias.grad.detach()
    flat.collect_gradients()
    assert_flat(flat)
    assert bool((collected(flat)["1.weight"] == 2).all())
    assert bool((collected(flat)["1.bias"] == 3).all())


def test_a_parameter_that_was_taken_out_and_put_back_is_no_change() -> None:
    model = make("perceptron")
    flat = FlatModel(model)
    layer = model.get_submodule("1")
    weight = layer.get_parameter("weight")
    del layer.weight
    layer.register_parameter("weight", weight)  # now behind the bias
    for step in range(2):
        backward(model, step)
        flat.collect_gradients()
    del layer.weight
    layer.register_parameter("scale", weight)
    with pytest.raises(UnsupportedModelError, match=r"1\.weight: another Parameter object took its place"):
        flat.collect_gradients()


def test_libraries_save_a_flat_model_with_all_its_tensors(tmp_path: Path) -> None:
    model = make("batch-norm")
    before = len(pickle.dumps(model.state_dict()))
    FlatModel(model)
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()
    accelerate.Accelerator().save_model(model, tmp_path / "accelerate")
    assert load_file(tmp_path / "accelerate" / "model.safetensors").keys() == model.state_dict().keys()
    assert len(pickle.dumps(model.state_dict())) < 1.1 * before


def test_an_optimiser_and_a_hook_made_before_flattening_go_on_working() -> None:
    model = make("perceptron")
    seen: list[Tensor] = []
    model.get_parameter("1.weight").register_hook(seen.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flat = FlatModel(model)
    before = flat.groups[0].parameters.clone()
    backward(model)
    optimizer.step()
    assert len(seen) == 1
    assert torch.allclose(flat.groups[0].parameters, before - 0.1 * flat.groups[0].gradients)


def test_a_flat_model_can_be_deep_copied_and_saved_like_any_other(tmp_path: object) -> None:
    model = make("batch-norm")
    FlatModel(model)
    twin = copy.deepcopy(model)
    file = f"{tmp_path}/model.safetensors"
    save_file(model.state_dict(), file)
    twin.load_state_dict(load_file(file))
    assert torch.equal(twin(a_batch()[0]), model(a_batch()[0]))


def test_a_model_is_freed_with_its_flat_memory() -> None:
    model = InOwnType(torch.float32)
    flat = FlatModel(model)
    watched = weakref.ref(flat.groups[0].parameters)
    del flat, model
    assert watched() is None
