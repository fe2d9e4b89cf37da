"""Recipes: what is legal, how two differ, and which settings of the rule follow."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from gem_core import ElementType, Layout, TensorKind, TensorSpec
from gem_core.errors import RecipeError
from gem_core.recipe import MAX_GROUP_SETTINGS, MAX_GROUPS, Recipe, RecipeKind, check_decays
from gem_core.rule_settings import GEM_SETTINGS, check_settings
from gem_core.shards import Shard

ADAMW = Recipe(
    RecipeKind.RMS,
    "AdamW",
    ({"lr": 0.001, "beta2": 0.999, "weight_decay": 0.01}, {"lr": 0.001, "beta2": 0.999, "weight_decay": 0.0}),
    (0, 1, 0),
)


def with_group(**changed: float) -> Recipe:
    return replace(ADAMW, groups=({**ADAMW.groups[0], **changed}, ADAMW.groups[1]))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (RecipeKind.RMS, {"factor": 1 / 3}, "RMS-scaled gradients at a third of its rate"),
        (RecipeKind.SPECTRAL, {"factor": 1.0}, "orthogonalised, RMS-scaled momentum at its rate"),
        (RecipeKind.GRADIENT, {"factor": 1 / 3, "momentum": 0.9}, "gradients at 3.33 times its rate"),
        (RecipeKind.GRADIENT, {"factor": 1 / 3, "momentum": 0.5, "dampening": 0.5}, "gradients at a third of its rate"),
        (RecipeKind.GRADIENT, {"factor": 1.0, "momentum": 1.0}, "gradients at its rate"),  # no client of ours sends it
        (RecipeKind.MOVEMENT, {}, "its own steps"),
    ],
)
def test_a_recipe_says_in_words_what_a_commit_is_made_of(
    kind: RecipeKind, settings: Mapping[str, float], words: str
) -> None:
    assert Recipe(kind, "Any", ({"lr": 0.1, **settings},), ()).in_words() == words


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (replace(ADAMW, optimizer="Adam"), "the optimizer is Adam, the run has AdamW"),
        (
            replace(ADAMW, kind=RecipeKind.MOVEMENT),
            f"a commit is made of its own steps, in the run of {ADAMW.in_words()} (every=, an option of the optimizer, "
            "or the model differs)",
        ),
        (with_group(lr=0.002), "group 0: lr is 0.002, the run has 0.001"),
        (with_group(momentum=0.9), "group 0: momentum is 0.9, the run has none"),
        (
            replace(ADAMW, groups=(ADAMW.groups[0], {"lr": 0.001, "beta2": 0.999})),
            "group 1: weight_decay is missing, the run has 0.0",
        ),
        (
            replace(ADAMW, groups=ADAMW.groups[:1], group_of_parameter=(0, 0, 0)),
            "the optimizer has 1 parameter groups, the run has 2",
        ),
        (replace(ADAMW, group_of_parameter=(0, 1, 1)), "parameter 2 is in group 1, the run has it in group 0"),
        (replace(ADAMW, group_of_parameter=(0, 1)), "the recipe has groups for 2 parameters, the run has 3"),
    ],
)
def test_a_difference_is_told_in_words(other: Recipe, difference: str) -> None:
    assert ADAMW.difference(other) == difference
    assert other != ADAMW


def test_equal_recipes_do_not_differ_whatever_the_order_of_their_settings() -> None:
    turned = replace(ADAMW, groups=tuple(dict(reversed(group.items())) for group in ADAMW.groups))
    assert ADAMW.difference(turned) == ""
    assert turned == ADAMW


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "sign"}, "known are gradient, rms, spectral, movement"),
        ({"optimizer": ""}, "the optimizer's name has 0 bytes"),
        ({"optimizer": "A" * 257}, "the optimizer's name has 257 bytes"),
        ({"optimizer": "Adam\u202eW"}, r"U\+202E"),
        ({"groups": ()}, "has 0 parameter groups"),
        ({"groups": ({},) * (MAX_GROUPS + 1)}, f"1 to {MAX_GROUPS}"),
        ({"groups": ({f"n{i}": 0.0 for i in range(MAX_GROUP_SETTINGS + 1)},) * 2}, f"at most {MAX_GROUP_SETTINGS}"),
        ({"groups": ({"lr": math.nan}, {})}, "group 0: lr is nan"),
        ({"groups": ({}, {"lr": math.inf})}, "group 1: lr is inf"),
        ({"groups": ({}, {"": 1.0})}, "a setting's name in group 1 has 0 bytes"),
        ({"group_of_parameter": (0, 2, 0)}, "parameter 1 is in group 2: name one of the recipe.s 2"),
        ({"group_of_parameter": (0, -1, 0)}, "parameter 1 is in group -1"),
    ],
)
def test_an_illegal_recipe_is_refused(changed: Mapping[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        replace(ADAMW, **changed)  # type: ignore[arg-type]


def test_the_largest_recipe_is_taken() -> None:
    settings = {f"n{i}": float(i) for i in range(MAX_GROUP_SETTINGS)}
    assert len(Recipe(RecipeKind.RMS, "Adam", (settings,) * MAX_GROUPS, (255,)).groups) == 256


def test_a_recipe_must_have_a_group_for_each_parameter() -> None:
    ADAMW.check_parameters(3)
    with pytest.raises(RecipeError, match="groups for 3 parameters, and the layout has 4"):
        ADAMW.check_parameters(4)


def test_decays_are_none_or_one_for_each_group_from_0_to_below_1() -> None:
    check_decays((), 2)
    check_decays((0.0, 0.999), 2)
    with pytest.raises(RecipeError, match="1 decays, and the run's recipe 2 groups"):
        check_decays((0.1,), 2)
    for wrong in (-0.1, 1.0, math.nan, math.inf):
        with pytest.raises(RecipeError, match="the decay of group 1"):
            check_decays((0.1, wrong), 2)


def test_the_groups_of_a_shard_are_those_of_its_tensors() -> None:
    shapes = (600, 300, 400)
    layout = Layout(
        TensorSpec(f"t{i}", (count,), ElementType.FLOAT32, TensorKind.PARAMETER) for i, count in enumerate(shapes)
    )
    assert ADAMW.groups_of(layout) == (0, 1, 0)
    shards = [Shard(index, 3).layout_of(layout) for index in range(3)]
    assert [[spec.name for spec in shard.parameters] for shard in shards] == [["t0"], ["t0", "t1"], ["t1", "t2"]]
    assert [ADAMW.groups_of(shard) for shard in shards] == [(0,), (0, 1), (1, 0)]


@pytest.mark.parametrize("kind", list(RecipeKind))
def test_the_rule_has_the_momentum_unless_the_workers_have_it(kind: RecipeKind) -> None:
    recipe = replace(ADAMW, kind=kind)
    chosen = check_settings("gem", GEM_SETTINGS, recipe.rule_settings())
    if kind in (RecipeKind.MOVEMENT, RecipeKind.SPECTRAL):
        names = ("momentum", "kappa", "pi_max", "signed_gap", "epsilon")
        assert [chosen[name] for name in names] == [0, 2, 1, 1, 1e-30]
    else:
        assert chosen == check_settings("gem", GEM_SETTINGS, {})
