"""Which optimizer becomes which recipe, and what is left to its own steps."""

from typing import Any

import pytest
import torch
from gem_worker.flat_model import FlatModel
from gem_worker.hidden_matrices import hidden_matrices
from gem_worker.model_tensors import inspect_model
from gem_worker.optimizer_recipe import Choice, choose_recipe, keep_first_rates, orthogonalised
from torch import nn
from torch.optim import SGD, Adadelta, Adam, AdamW, Muon, NAdam, Optimizer, RAdam
from torch.optim.lr_scheduler import OneCycleLR

from gem_core.recipe import MAX_GROUPS, RecipeKind
from tests.worker.zoo import make


class Language(nn.Module):
    """An embedding, hidden matrices and a head."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.hidden = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))
        self.head = nn.Linear(4, 11, bias=False)


class OwnAdam(Adam):
    """A subclass, which may step in another way."""


def choice_for(model: nn.Module, optimizer: Optimizer, every: int | str = 1) -> Choice:
    return choose_recipe(optimizer, model, inspect_model(model)[1], every=every)


@pytest.mark.parametrize("create", [Adam, AdamW, NAdam, RAdam])
def test_adam_and_its_like_become_rms_scaled_gradients(create: Any) -> None:
    model = make("perceptron")
    found = choice_for(model, create(model.parameters(), lr=0.003, betas=(0.8, 0.97), eps=1e-6, weight_decay=0.25))
    assert found.reason == ""
    assert found.recipe.kind is RecipeKind.RMS
    assert found.recipe.optimizer == create.__name__
    assert dict(found.recipe.groups[0]) == {
        "lr": 0.003,
        "beta2": 0.97,
        "epsilon": 1e-6,
        "weight_decay": 0.25,
        "decoupled_weight_decay": float(create is AdamW),
        "factor": pytest.approx(1 / 3),
    }
    assert found.recipe.group_of_parameter == (0, 0, 0, 0)
    text = f"{create.__name__}: RMS-scaled gradients at a third of its rate, under gem (docs/rules.md)"
    assert found.describe(None) == text


def test_sgd_becomes_gradients_at_the_rate_that_its_momentum_reaches() -> None:
    model = make("perceptron")
    found = choice_for(model, SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01))
    assert found.recipe.kind is RecipeKind.GRADIENT
    assert dict(found.recipe.groups[0]) == {
        "lr": 0.1,
        "momentum": 0.9,
        "dampening": 0.0,
        "weight_decay": 0.01,
        "factor": pytest.approx(1 / 3),
    }
    assert found.describe(None) == "SGD: gradients at 3.33 times its rate, under gem (docs/rules.md)"


def test_hidden_matrices_of_a_model_with_a_trained_embedding_are_orthogonalised_if_there_are_several() -> None:
    lone = Language()
    assert choice_for(lone, AdamW(lone.parameters())).recipe.kind is RecipeKind.RMS
    model = Language(depth=2)
    found = choice_for(model, AdamW(model.parameters()))
    assert found.recipe.kind is RecipeKind.SPECTRAL
    assert (found.recipe.groups[0]["factor"], found.recipe.groups[0]["beta1"]) == (1, 0.9)
    text = "AdamW: orthogonalised, RMS-scaled momentum at its rate, under gem with a signed gap (docs/rules.md)"
    assert found.describe(None) == text
    model.embedding.requires_grad_(False)
    assert choice_for(model, AdamW(model.parameters())).recipe.kind is RecipeKind.RMS


def test_a_head_is_no_hidden_matrix_whatever_its_shape_and_whether_it_is_tied() -> None:
    model = Language()
    assert hidden_matrices(inspect_model(model)[1]) == (1,)
    model.head = nn.Linear(4, 3, bias=False)  # of a classifier
    assert hidden_matrices(inspect_model(model)[1]) == (1,)
    del model.head
    model.decoder = nn.Linear(4, 11, bias=False)
    model.decoder.weight = model.embedding.weight
    assert hidden_matrices(inspect_model(model)[1]) == (1,)


def test_muon_orthogonalises_what_it_was_given_at_the_rate_of_its_steps() -> None:
    model = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 6))
    matrices = [model[0].weight, model[1].weight]
    for adjust, expected in ((None, [5 / 6**0.5, 5 / 24**0.5]), ("match_rms_adamw", [1.0, 1.0])):
        optimizer = Muon(matrices, lr=0.02, adjust_lr_fn=adjust)
        found = choice_for(model, optimizer)
        assert (found.recipe.kind, found.recipe.group_of_parameter) == (RecipeKind.SPECTRAL, (0, 1, 0, 1))
        assert (found.recipe.groups[0]["factor"], found.recipe.groups[0]["beta1"]) == (1 / 3, 0.95)
        assert dict(found.recipe.groups[1]) == {"lr": 0.0}, "no worker trains the vectors"
        flat = FlatModel(model)
        factors = orthogonalised(optimizer, [one.tensor for one in flat.trained], (0, 2))
        assert factors == {0: pytest.approx(expected[0]), 2: pytest.approx(expected[1])}


def test_groups_are_those_of_the_optimizer_in_the_layouts_order() -> None:
    model = make("perceptron")
    vectors, matrices = ([one for one in model.parameters() if (one.ndim == 2) is wanted] for wanted in (False, True))
    optimizer = AdamW([{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "lr": 0.5}], lr=0.25)
    recipe = choice_for(model, optimizer).recipe
    assert [group["lr"] for group in recipe.groups] == [0.25, 0.5]
    assert recipe.group_of_parameter == (1, 0, 1, 0)


def test_a_recipe_is_that_of_the_first_step_however_far_the_schedule_is() -> None:
    model = make("perceptron")
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
    before = choice_for(model, optimizer).recipe
    assert before.groups[0]["lr"] == 0.5, "OneCycleLR begins at a 25th"
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] != before.groups[0]["lr"]
    assert optimizer.param_groups[0]["momentum"] != before.groups[0]["momentum"]
    assert choice_for(model, optimizer).recipe == before


def test_the_momentum_of_a_recipe_is_that_of_the_first_step_however_far_the_schedule_is() -> None:
    model = Language(depth=2)
    optimizer = AdamW(model.parameters())
    schedule = OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
    before = choice_for(model, optimizer).recipe
    assert before.groups[0]["beta1"] == 0.95
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["betas"][0] != 0.95
    assert choice_for(model, optimizer).recipe == before


def test_a_script_that_sets_its_rate_by_hand_resumes_with_the_recipe_that_it_had() -> None:
    model, again = make("perceptron"), make("perceptron")
    optimizer = AdamW(model.parameters(), lr=0.25)
    before = choice_for(model, optimizer).recipe
    keep_first_rates(optimizer)
    optimizer.param_groups[0]["lr"] = 0.125
    resumed = AdamW(again.parameters(), lr=0.25)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.param_groups[0]["lr"] == 0.125
    assert choice_for(again, resumed).recipe == before


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (lambda model: Adadelta(model.parameters()), "Adadelta"),
        (lambda model: OwnAdam(model.parameters()), "OwnAdam"),
        (lambda model: AdamW(model.parameters(), amsgrad=True), "AdamW with amsgrad"),
        (lambda model: SGD(model.parameters(), maximize=True), "SGD with maximize"),
        (lambda model: SGD(model.parameters(), momentum=1.0), "SGD with a momentum of 1 or more"),
        (
            lambda model: AdamW([*model.parameters(), nn.Parameter(torch.zeros(1))]),
            "AdamW with parameters outside the model",
        ),
    ],
)
def test_what_has_no_translation_keeps_its_own_steps(create: Any, reason: str) -> None:
    model = make("perceptron")
    optimizer = create(model)
    found = choice_for(model, optimizer)
    assert (found.recipe.kind, found.reason) == (RecipeKind.MOVEMENT, reason)
    assert [dict(group) for group in found.recipe.groups] == [{"lr": optimizer.param_groups[0]["lr"]}]
    assert found.describe(None).startswith(f"{reason}: its own steps are committed, under gem with a signed gap")


def test_several_steps_between_commits_are_the_optimizers_own() -> None:
    model = make("perceptron")
    found = choice_for(model, AdamW(model.parameters()), every=4)
    assert (found.recipe.kind, found.reason) == (RecipeKind.MOVEMENT, "AdamW with every=4")


def test_more_groups_than_a_recipe_has_are_no_obstacle() -> None:
    model = nn.ParameterList(torch.zeros(1) for _ in range(MAX_GROUPS + 2))
    optimizer = AdamW([{"params": [one]} for one in model])
    found = choice_for(model, optimizer)
    assert (found.recipe.kind, len(found.recipe.groups)) == (RecipeKind.MOVEMENT, MAX_GROUPS)
    assert found.recipe.group_of_parameter[-3:] == (MAX_GROUPS - 1,) * 3


def test_a_rule_that_the_server_names_wins_and_is_named() -> None:
    model = make("perceptron")
    text = choice_for(model, AdamW(model.parameters())).describe("downpour")
    assert text == "AdamW: its own steps are committed, under downpour, which the server names (docs/rules.md)"
