"""The run's settings as messages, which change when the first worker decides about the rule."""

from gemps.v1 import run_pb2

from gem_server.rule_choice import RuleChoice
from gem_server.service import messages
from gem_server.settings import ServerSettings
from gem_server.state.run import Run


class RunSettingsMessages:
    """The messages, which are created again after each decision. Only the event loop's thread may use it.

    Attributes:
        for_workers: the message for Join's answer, with the whole recipe.
    """

    def __init__(self, settings: ServerSettings, choice: RuleChoice, run: Run) -> None:
        self._settings = settings
        self._choice = choice
        self._run = run
        self.for_workers = self._for_people = run_pb2.RunSettings()
        self._make()
        choice.on_change.append(self._make)

    @property
    def rule(self) -> str:
        """Describes in one line what the run does with commits."""
        return self._choice.describe()

    @property
    def for_people(self) -> run_pb2.RunSettings:
        """The message for the status, without the groups of the PARAMETERs. eta is 0 if the server has none."""
        self._for_people.eta = self.for_workers.eta if self._choice.has_eta else 0.0
        return self._for_people

    def _make(self) -> None:
        recipe = self._choice.recipe
        self.for_workers = messages.run_settings_to(self._settings, self._choice, self._run.schedule)
        self._for_people = messages.run_settings_to(self._settings, self._choice, self._run.schedule)
        if recipe is not None:
            self._for_people.recipe.CopyFrom(messages.recipe_to(recipe, with_parameters=False))
            self.for_workers.recipe.CopyFrom(messages.recipe_to(recipe))
