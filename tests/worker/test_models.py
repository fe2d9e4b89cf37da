"""The models of `gemps work`."""

import pytest
import torch
from gem_worker.errors import TaskError
from gem_worker.flat_model import FlatModel
from gem_worker.models import create_model
from torch import nn


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in model.parameters() if p.ndim > 1]


def test_the_perceptron_on_digits_is_64_64_10() -> None:
    assert shapes(create_model("mlp", (1, 8, 8), 10, seed=0)) == [(64, 64), (10, 64)]


def test_the_cnn_on_28_x_28_is_that_of_appendix_a() -> None:
    model = create_model("cnn", (1, 28, 28), 10, seed=0)
    assert shapes(model) == [(10, 1, 5, 5), (20, 10, 5, 5), (300, 320), (200, 300), (10, 200)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 20), (2, 4, 4)])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_own_models_take_images_of_any_size(name: str, shape: tuple[int, int, int]) -> None:
    model = create_model(name, shape, 7, seed=0)
    assert model(torch.rand(3, *shape)).shape == (3, 7)


def test_images_too_small_for_the_cnn_are_refused() -> None:
    with pytest.raises(TaskError, match="at least 4 x 4 pixels"):
        create_model("cnn", (1, 3, 8), 10, seed=0)


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "googlenet", "mobilenet_v3_small", "vit_b_16"])
def test_a_model_of_torchvision_is_flattened_and_gives_logits(name: str) -> None:
    model = create_model(name, (3, 224, 224), 7, seed=0)
    FlatModel(model)
    model.eval()
    with torch.inference_mode():
        assert model(torch.rand(1, 3, 224, 224)).shape == (1, 7)
    model.train()
    assert isinstance(model(torch.rand(2, 3, 224, 224)), torch.Tensor)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
def test_first_parameters_follow_from_the_seed_alone(name: str) -> None:
    shape = (3, 32, 32)
    torch.manual_seed(1)
    first = create_model(name, shape, 10, seed=3)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))  # the global generator was left as it was
    again, other = create_model(name, shape, 10, seed=3), create_model(name, shape, 10, seed=4)
    for key, value in first.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    assert any(not torch.equal(other.state_dict()[key], value) for key, value in first.state_dict().items())


def test_unknown_models_and_wrong_channels_are_told_with_the_fix() -> None:
    with pytest.raises(TaskError, match="no model 'resnet81'; did you mean resnet1"):
        create_model("resnet81", (3, 32, 32), 10, seed=0)
    with pytest.raises(TaskError, match="no model '\\?'; there are mlp, cnn and"):
        create_model("?", (3, 32, 32), 10, seed=0)
    with pytest.raises(TaskError, match="3 channels, this task has 1; use --model cnn or mlp"):
        create_model("resnet18", (1, 28, 28), 10, seed=0)
