"""The names of models, as they are told without importing torchvision: exactly those that it has."""

from gem_worker.model_names import explain_unknown, torchvision_models
from torchvision import models


def test_names_in_the_source_are_those_that_torchvision_lists() -> None:
    assert sorted(torchvision_models()) == sorted(models.list_models(module=models))


def test_the_nearest_name_is_told_and_otherwise_what_there_is() -> None:
    assert explain_unknown("resnet81", ["resnet18", "alexnet"]).endswith("did you mean resnet18?")
    assert explain_unknown("cnnn", []).endswith("did you mean cnn?")
    assert "torchvision" in explain_unknown("#", ["resnet18"])
