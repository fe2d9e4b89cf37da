"""The recipe of the run: how the optimizer of its workers' scripts is translated (gem_core/recipe.py)."""

from dataclasses import dataclass

from gem_core.recipe import Recipe


@dataclass(slots=True)
class RunRecipe:
    """Whether the run has a recipe. Event loop thread only.

    Attributes:
        recipe: the run's recipe; None: the run has none.
        is_bound: whether that is decided: from the start where the server names its rule, else by the first Join.
    """

    recipe: Recipe | None = None
    is_bound: bool = True
