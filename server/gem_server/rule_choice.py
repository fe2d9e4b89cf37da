"""Decides the run's rule: by the server's settings, or with `--rule auto` by its first worker (docs/rules.md).

If the settings name the rule, it is decided from the start. The server then accepts workers with a recipe and without
one, and the run has no recipe: `RunRecipe.recipe` remains None.

With `--rule auto` the rule is gem, and the Join of the first worker decides the rest:

    it has a recipe             the run's recipe is this one; gem gets the settings that follow from it
    it computes direction auto  the run has no recipe, and this direction; eta and gem's settings are the direction's
    neither                     the run has no recipe, and commits are gradients

    undecided -> decided -> final
                 <-----        without parameters, the next worker that joins while no other is there decides anew

Options that were given explicitly take precedence over what follows from a worker without a recipe, and exclude
workers with a recipe. Later workers must match the decision, and are refused otherwise. The first parameters make the
decision final. Each checkpoint contains it, and a server that resumes the run with `--rule auto` reads it from there. A
checkpoint without a decision is of a run that began under a named rule; such a run continues without a recipe, with
gradients. A server that resumes the run under a named rule copies the decision into its checkpoints for a later server.
Secondary shards follow the primary's decision.

Only the event loop's thread may use it. The rule object remains the same; its settings change before it begins.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from gem_core import RuleError, UpdateRule, create_rule, features
from gem_core.features import direction_feature
from gem_core.recipe import Recipe
from gem_core.registry import AUTO, Direction
from gem_server.errors import Reason, RefusedError, StartupError
from gem_server.settings import ServerSettings
from gem_server.state.recipe import RunRecipe, read_recipe, recipe_record
from gem_server.state.run import Run
from gem_server.state.schedule import EtaSchedule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker's Join says about its commits: its recipe, and its features (session.proto)."""

    recipe: Recipe | None
    features: Collection[str]


def rule_of(settings: ServerSettings) -> UpdateRule:
    """The rule that the settings name. Raises StartupError if it cannot be loaded, or has other settings."""
    try:
        return create_rule(settings.rule_name, **settings.settings_of_rule())
    except RuleError as error:
        raise StartupError(str(error)) from error


class RuleChoice:
    """The decision, and its effects on the rule, the run's eta and the run's recipe.

    Attributes:
        rule: the run's rule, created by `rule_of`.
        direction: the direction that workers compute from gradients.
        on_change: functions that are called after each decision that differs from the one before.
    """

    def __init__(self, settings: ServerSettings, rule: UpdateRule, run: Run, recipe: RunRecipe) -> None:
        self._settings = settings
        self.rule = rule
        self._run = run
        self._bound = recipe
        # If the run is resumed under a named rule, the decision of its first worker, as in the checkpoint.
        self._kept: Mapping[str, Any] | None = None
        self.direction: Direction = settings.given_direction or "gradient"
        # Under a named rule, whether the worker that joined last commits the movement of its own optimizer.
        self._moves = False
        self.on_change: list[Callable[[], None]] = []
        recipe.is_bound = not settings.is_auto

    @property
    def recipe(self) -> Recipe | None:
        """The run's recipe, if it has one."""
        return self._bound.recipe

    @property
    def is_decided(self) -> bool:
        """Whether the rule is decided, so that workers can commit."""
        return self._bound.is_bound

    @property
    def has_eta(self) -> bool:
        """Whether the server knows the learning rate of commits.

        It does not before the first worker has joined, nor if commits are steps of workers' own optimizers.
        """
        return not self._moves and (self.is_decided or "eta" in self._settings.model_fields_set)

    @property
    def rule_name(self) -> str:
        """The rule, or "auto" until it is decided."""
        return self.rule.name if self.is_decided else AUTO

    def settle(self, offer: Offer, *, is_first: bool) -> None:
        """Decide by this worker, if it is the first one, or compare it with the decision.

        Raises RefusedError: RECIPE or FEATURE, without changes.
        """
        recipe = offer.recipe if self._settings.is_auto else None
        if recipe is not None:
            self._require_room()
        if not self._settings.is_auto or (self.is_decided and not is_first):
            self._check_features(offer, self.recipe, self.direction)
            self._check_recipe(recipe)
            self._moves = not self._settings.is_auto and offer.recipe is not None
            return
        direction: Direction = self.direction_of(offer) if recipe is None else "gradient"
        self._check_features(offer, recipe, direction)
        self._decide(recipe, direction)

    @property
    def decision(self) -> tuple[Recipe | None, Direction] | None:
        """What was decided, for `return_to`; None: nothing yet."""
        return (self.recipe, self.direction) if self.is_decided else None

    def return_to(self, decision: tuple[Recipe | None, Direction] | None) -> None:
        """Undo `settle` after its worker was refused. With None nothing changes, and the next worker decides again."""
        if decision is not None:
            self._decide(*decision)

    def follow(self, recipe: Recipe | None, direction: str) -> None:
        """Adopt the primary's decision. Raises ValueError for a direction that this version does not know."""
        self._decide(recipe, _direction(direction))

    def direction_of(self, offer: Offer) -> Direction:
        """The direction of a run whose first worker is this one, which has no recipe."""
        return self._settings.given_direction or ("auto" if direction_feature("auto") in offer.features else "gradient")

    @property
    def record(self) -> dict[str, Any] | None:
        """The decision as JSON values for checkpoints, or under a named rule the earlier one, if there is any."""
        if not self._settings.is_auto:
            return None if self._kept is None else dict(self._kept)
        if not self.is_decided:
            return None
        return {"recipe": recipe_record(self.recipe), "direction": self.direction}

    def restore(self, record: Mapping[str, Any] | None) -> None:
        """Adopt the decision of a run that is resumed. Raises KeyError, TypeError or ValueError."""
        if not self._settings.is_auto:
            self._keep(record)
            return
        if record is None:
            logger.warning(
                "the checkpoint has no decision of a first worker, as of a run whose rule was named: with --rule auto "
                "it goes on as %s, with direction %s",
                self.rule.name,
                self.direction,
            )
            self._decide(None, self.direction)
            return
        recipe, given = read_recipe(record["recipe"]), self._settings.given_direction
        self._decide(recipe, given if given and recipe is None else _direction(record["direction"]))

    def _keep(self, record: Mapping[str, Any] | None) -> None:
        self._kept = record
        recipe = None if record is None else read_recipe(record["recipe"])
        if recipe is not None:
            logger.info(
                "the run has followed its first worker's %s (%s) until now; --rule %s takes its place, and --rule auto "
                "goes on with it after another --resume",
                recipe.optimizer,
                _summary(recipe),
                self.rule.name,
            )

    def describe(self) -> str:
        """Describe in one line what the run does with commits."""
        recipe = self.recipe
        if recipe is not None:
            return f"rule {self.rule.name} by the first worker's {recipe.optimizer} ({_summary(recipe)})"
        if not self.is_decided:
            return f"rule {AUTO}: the first worker decides"
        is_auto = self._settings.is_auto
        parts = [f"{AUTO}: {self.rule.name}" if is_auto else self.rule.name]
        if is_auto or self.direction != "gradient":
            parts.append(f"direction {self.direction}")
        parts.append("of what workers' optimizers moved" if self._moves else f"eta {self._run.schedule.eta:g}")
        return f"rule {', '.join(parts)}"

    def _decide(self, recipe: Recipe | None, direction: Direction) -> None:
        if self.is_decided and (recipe, direction) == (self.recipe, self.direction):
            return
        settings = self._settings.settings_of_rule(direction) if recipe is None else recipe.rule_settings()
        self.rule.change_settings(settings)
        self._run.schedule = self._schedule(recipe, direction)
        self.direction = direction
        self._bound.recipe, self._bound.is_bound = recipe, True
        for listener in self.on_change:
            listener()

    def _schedule(self, recipe: Recipe | None, direction: str) -> EtaSchedule:
        """Return the schedule of eta. With a recipe it is constant, because each commit has its own rate."""
        usual = self._settings.schedule_of(direction)
        return usual if recipe is None else EtaSchedule("constant", recipe.groups[0].get("lr", usual.eta))

    def _require_room(self) -> None:
        given = self._settings.given_instead_of_recipes
        if given:
            flags = " and ".join(filter(None, (", ".join(given[:-1]), given[-1])))
            raise RefusedError(
                Reason.RECIPE,
                f"the server was started with {flags}, and this worker's optimizer decides about that: start the "
                "server without, or name its rule, for example --rule gem, for workers to commit what their optimizer "
                "moved",
            )

    def _check_recipe(self, offered: Recipe | None) -> None:
        own = self.recipe
        if own is None and offered is None:
            return
        if own is None:
            difference = "the worker has an optimizer, and the run was begun without one"
            fix = "start all workers with the same optimizer, or all without, or name the server's rule"
        elif offered is None:
            difference = f"the worker has no optimizer, and the run has {own.optimizer} of its first worker"
            fix = "give ParameterServer the same optimizer as there, or name the server's rule, for example --rule gem"
        else:
            difference = own.difference(offered)
            fix = "start all workers with the same optimizer, or name the server's rule, for example --rule gem"
        if difference:
            raise RefusedError(Reason.RECIPE, f"{difference}: {fix}", metadata={"difference": difference[:1024]})

    @property
    def needed_features(self) -> Mapping[str, str]:
        """Return the features that a worker needs, each with the server option that requires it."""
        return self._needed_features(self.recipe, self.direction)

    def _needed_features(self, recipe: Recipe | None, direction: str) -> Mapping[str, str]:
        step = self.rule.worker_step.with_direction(direction)
        needed = {}
        if recipe is not None:
            needed[features.RECIPE] = "--rule auto"
        if direction != "gradient":
            needed[direction_feature(direction)] = f"--direction {direction}"
        if self._settings.clip_norm:
            needed[features.CLIP_NORM] = f"--clip-norm {self._settings.clip_norm:g}"
        if step.local_steps > 1:
            needed[features.LOCAL_STEPS] = f"--local-steps {step.local_steps}"
        if step.local_steps > 1 and step.scaled:
            needed[features.SCALED_LOCAL_STEPS] = f"--local-steps {step.local_steps}"
        return needed

    def _check_features(self, offer: Offer, recipe: Recipe | None, direction: str) -> None:
        needed = self._needed_features(recipe, direction)
        check_features({name: why for name, why in needed.items() if name not in offer.features})


def check_features(missing: Mapping[str, str]) -> None:
    """Raise RefusedError (FEATURE) if `missing` is not empty. It has the option that requires each missing feature."""
    if missing:
        names, options = ", ".join(missing), " and ".join(dict.fromkeys(missing.values()))
        raise RefusedError(
            Reason.FEATURE,
            f"this run needs features that the worker does not announce in Join ({names}): use a worker that has them, "
            f"or start the server without {options}",
            metadata={"missing": names},
        )


def _direction(name: object) -> Direction:
    for known in get_args(Direction):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"direction {name!r} is unknown: name another, for example --direction auto")


def _summary(recipe: Recipe) -> str:
    """Describe a recipe, such as "RMS-scaled gradients at a third of its rate, lr 0.001 and 2 groups"."""
    rates = [group["lr"] for group in recipe.groups if "lr" in group]
    parts = [recipe.in_words()]
    if rates:
        parts.append(f"lr {min(rates):g}" + (f" to {max(rates):g}" if min(rates) != max(rates) else ""))
    groups = f" and {len(recipe.groups)} groups" if len(recipe.groups) > 1 else ""
    return ", ".join(parts) + groups
