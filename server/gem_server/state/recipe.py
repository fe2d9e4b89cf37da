"""The recipe of the run: how the optimizer of its workers' scripts is translated (gem_core/recipe.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gem_core import Layout, UpdateRule
from gem_core.recipe import Recipe, RecipeKind


@dataclass(slots=True)
class RunRecipe:
    """Whether the run has a recipe. Event loop thread only.

    Attributes:
        recipe: the run's recipe; None: the run has none.
        is_bound: whether that is decided: from the start where the server names its rule, else by the first Join.
    """

    recipe: Recipe | None = None
    is_bound: bool = True

    def begin(self, rule: UpdateRule, layout: Layout) -> None:
        """Let the rule see the tensors and, in a run with a recipe, which of its groups each belongs to."""
        if self.recipe is None:
            rule.begin(layout)
        else:
            rule.begin(layout, self.recipe.groups_of(layout))


def recipe_record(recipe: Recipe | None) -> dict[str, Any] | None:
    """JSON values of a recipe, for checkpoints."""
    if recipe is None:
        return None
    return {
        "kind": recipe.kind.value,
        "optimizer": recipe.optimizer,
        "groups": [dict(group) for group in recipe.groups],
        "group_of_parameter": list(recipe.group_of_parameter),
    }


def read_recipe(record: Mapping[str, Any] | None) -> Recipe | None:
    """The recipe of `recipe_record`. Raises KeyError, TypeError or ValueError."""
    if record is None:
        return None
    groups = tuple({str(name): float(value) for name, value in group.items()} for group in record["groups"])
    parameters = tuple(int(group) for group in record["group_of_parameter"])
    return Recipe(RecipeKind(record["kind"]), str(record["optimizer"]), groups, parameters)
