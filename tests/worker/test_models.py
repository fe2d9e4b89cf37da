"""The models of `gemps work`."""

import pytest
import torch
from gem_worker.errors import TaskError
from gem_worker.flat_model import FlatModel
from gem_worker.model_sizes import TransformerSizes
from gem_worker.models import create_model, model_for_task
from gem_worker.tasks import TaskOptions, create_task
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


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("alexnet", "googlenet", "mobilenet_v3_small", "vit_b_16")
        ),
    ],
)
def test_a_model_of_torchvision_is_flattened_and_gives_logits(name: str) -> None:
    model = create_model(name, (3, 224, 224), 7, seed=0)
    FlatModel(model)
    model.eval()
    with torch.inference_mode():
        assert model(torch.rand(1, 3, 224, 224)).shape == (1, 7)
    model.train()
    assert isinstance(model(torch.rand(2, 3, 224, 224)), torch.Tensor)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "transformer"])
def test_first_parameters_follow_from_the_seed_alone(name: str) -> None:
    shape = (16,) if name == "transformer" else (3, 32, 32)
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
    with pytest.raises(TaskError, match="no model '\\?'; there are mlp, cnn, transformer and"):
        create_model("?", (3, 32, 32), 10, seed=0)
    with pytest.raises(TaskError, match="3 channels, this task has 1; use --model cnn or mlp"):
        create_model("resnet18", (1, 28, 28), 10, seed=0)


def test_the_transformer_of_the_task_text_has_137_thousand_parameters() -> None:
    model = model_for_task(create_task("text"), "", seed=0)
    assert FlatModel(model).layout.parameter_count == 136_960
    assert model(torch.zeros(2, 64, dtype=torch.int64)).shape == (2, 256, 64)


@pytest.mark.parametrize("training", [True, False])
def test_no_logits_depend_on_later_characters(training: bool) -> None:
    model = create_model("transformer", (32,), 256, seed=0).train(training)
    text = torch.randint(256, (3, 32), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        before = model(text)
        for position in (0, 1, 17, 31):
            changed = text.clone()
            changed[:, position] = (text[:, position] + 1) % 256
            after = model(changed)
            assert torch.equal(after[:, :, :position], before[:, :, :position])
            assert (after[:, :, position] - before[:, :, position]).abs().max() > 1e-4


def test_every_size_of_a_transformer_is_in_its_layout() -> None:
    def layout(context: int, **sizes: int) -> bytes:
        return FlatModel(create_model("transformer", (context,), 256, 0, TransformerSizes(**sizes))).layout.digest

    assert layout(32) == layout(32)
    others = [layout(64), layout(32, layers=1), layout(32, width=32), layout(32, heads=2), layout(32)]
    assert len(set(others)) == len(others)


def test_the_sizes_are_those_of_the_tasks_options() -> None:
    options = TaskOptions(context=32, sizes=TransformerSizes(layers=1, width=32, heads=2))
    model = model_for_task(create_task("text", options), "", seed=0)
    assert (32, 32) in shapes(model)
    assert (3 * 32, 32) in shapes(model)


def test_models_and_tasks_that_do_not_go_together_are_told_with_the_fix() -> None:
    for name in ("mlp", "cnn", "resnet18"):
        with pytest.raises(TaskError, match=f"the model {name} takes images, .*; leave --model out"):
            create_model(name, (64,), 256, seed=0)
    with pytest.raises(TaskError, match=r"the model transformer takes text, .*; use --task text"):
        create_model("transformer", (1, 8, 8), 10, seed=0)
    with pytest.raises(TaskError, match="--width 64 is not divisible by --heads 3; change one"):
        TransformerSizes(width=64, heads=3)
