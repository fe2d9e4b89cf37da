"""One source of truth for flag, environment variable, TOML key, default and help."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from gem_cli.commands.known import KNOWN
from gem_cli.environment import misspelt
from gem_cli.errors import USAGE, CommandError
from gem_cli.main import app
from gem_cli.options import Given, OptionGroup, to_arguments, with_options
from gem_cli.setting_keys import fields
from gem_cli.training.settings import TrainSettings
from gem_server.settings import ServerSettings
from gem_simulator.settings import SimulationSettings
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict
from typer.main import get_command
from typer.testing import CliRunner

from tests.cli.processes import gemps_here


class Colours(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GEMPS_", frozen=True, extra="forbid")

    depth: int = Field(3, ge=1, description="Depth, in [1, 9].")
    shade: Literal["light", "dark"] = Field("light", description="Shade.", json_schema_extra={"panel": "Taste"})
    loud: bool = Field(False, description="Loudness.")
    folder: Path | None = Field(None, description="Folder.")


def run(*arguments: str) -> tuple[Colours, list[str]]:
    """The settings that a command with these options sees, and the arguments that it would hand to a child."""
    seen: list[tuple[Colours, list[str]]] = []

    @with_options(OptionGroup(Colours, "Colours"), known=[Colours])
    def paint(given: Given, place: Annotated[str, typer.Argument()] = "here") -> None:
        seen.append((given.load(Colours), given.arguments(Colours)))

    app = typer.Typer()
    app.command()(paint)
    app.command()(other)
    result = CliRunner().invoke(app, ["paint", *arguments])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return seen[0]


def other() -> None:
    """Makes the app a group."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gemps.toml"
    path.write_text('depth = 5\nshade = "dark"\n', encoding="utf-8")
    return path


def test_nothing_given_means_the_defaults() -> None:
    settings, arguments = run()
    assert settings == Colours()
    assert arguments == []


def test_a_flag_beats_the_environment_which_beats_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--config", str(config))[0].depth == 5
    monkeypatch.setenv("GEMPS_DEPTH", "6")
    assert run("--config", str(config))[0].depth == 6
    assert run("--config", str(config), "--depth", "7")[0].depth == 7


def test_an_option_that_is_not_given_overrides_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_LOUD", "true")
    settings, _ = run("--config", str(config), "--depth", "7")
    assert (settings.shade, settings.loud) == ("dark", True)


def test_a_flag_switches_off_what_the_environment_switches_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_LOUD", "true")
    assert run("--no-loud")[0].loud is False


def test_the_config_file_can_be_named_by_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_CONFIG", str(config))
    assert run()[0].depth == 5


def test_what_was_given_can_be_handed_to_a_child(config: Path) -> None:
    settings, arguments = run("--config", str(config), "--depth", "7", "--no-loud", "--folder", "a b")
    assert arguments == ["--config", str(config), "--depth=7", "--no-loud", "--folder=a b"]
    assert run(*arguments)[0] == settings


def test_values_become_arguments() -> None:
    assert to_arguments({"eta": 0.1, "resume": True, "reflection": False}) == [
        "--eta=0.1",
        "--resume",
        "--no-reflection",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--depth", "0"], "--depth 0: should be greater than or equal to 1"),
        (["--depth", "deep"], "--depth deep: should be a valid integer"),
        (["--shade", "pink"], "--shade pink: should be 'light' or 'dark'"),
        (["--config", "missing.toml"], "--config missing.toml: No such file"),
    ],
)
def test_a_bad_value_is_one_line_that_says_where_it_came_from(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.code == USAGE


def test_a_bad_value_of_the_environment_or_the_file_says_so(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_DEPTH", "0")
    with pytest.raises(CommandError, match=r"^GEMPS_DEPTH=0: should be greater"):
        run()
    config.write_text("folder = 3\n", encoding="utf-8")
    with pytest.raises(CommandError, match=r"gemps\.toml: folder = 3: is not a valid path"):
        run("--config", str(config), "--depth", "1")


def test_values_that_do_not_fit_together_say_where_they_came_from(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMPS_RULE_SETTINGS", "local_rate=0.5")
    with pytest.raises(
        CommandError,
        match=r"^--rule-settings: local_rate needs --local-steps: .* \(here: GEMPS_RULE_SETTINGS=local_rate=0.5\)$",
    ):
        Given({}, None, [ServerSettings]).load(ServerSettings)
    monkeypatch.delenv("GEMPS_RULE_SETTINGS")
    config.write_text("weight_decay = 0.1\n[rule]\nweight_decay = 0.2\n", encoding="utf-8")
    with pytest.raises(
        CommandError,
        match=r"^--rule-settings: weight_decay is given here and as --weight-decay: give one of them "
        r"\(here: .*gemps\.toml: .*\)$",
    ):
        Given({}, config, [ServerSettings]).load(ServerSettings)


def test_the_table_of_the_rule_has_its_name_and_its_settings(config: Path) -> None:
    config.write_text('[rule]\nname = "gem"\nmomentum = 0.5\nkappa = 2\n', encoding="utf-8")
    settings = Given({}, config, KNOWN).load(ServerSettings)
    assert (settings.rule, settings.rule_settings) == ("gem", "momentum=0.5,kappa=2")
    assert Given({}, config, KNOWN).load(SimulationSettings).rule_settings == "momentum=0.5,kappa=2"
    given = Given({ServerSettings: {"rule_settings": "momentum=0.9"}}, config, KNOWN)
    assert given.load(ServerSettings).rule_settings == "momentum=0.9"


def test_an_unknown_key_of_the_file_is_refused_with_a_suggestion(config: Path) -> None:
    config.write_text("dept = 5\n", encoding="utf-8")
    with pytest.raises(CommandError, match="no setting 'dept'; did you mean 'depth'"):
        run("--config", str(config))


@pytest.mark.parametrize("settings", KNOWN, ids=lambda one: one.__name__)
def test_every_setting_says_its_meaning_and_can_be_given_on_the_command_line(settings: type[BaseSettings]) -> None:
    commands = {
        ServerSettings: "serve",
        WorkerSettings: "work",
        EvaluatorSettings: "evaluate",
        TrainSettings: "train",
        SimulationSettings: "simulate",
    }
    help_text = gemps_here(commands[settings], "--help-all", env={"COLUMNS": "240"}).stdout
    settable = get_command(app).commands[commands[settings]].callback.settable  # type: ignore[attr-defined]
    for name, field in fields(settings).items():
        assert field.description, f"{name} has no description"
        if name not in settable:
            assert f"--{name.replace('_', '-')}" in help_text
            assert f"GEMPS_{name.upper()}" in help_text


def test_no_two_settings_share_a_name_unless_they_mean_the_same() -> None:
    """One environment variable and one TOML key serve all classes, so a shared name is a trap."""
    real = [settings for settings in KNOWN if settings is not SimulationSettings]
    fields: list[tuple[Any, FieldInfo]] = [named for settings in real for named in settings.model_fields.items()]
    names = [name for name, _ in fields]
    shared = sorted({name for name in names if names.count(name) > 1})
    assert shared == ["log_format", "run"]
    for one in shared:
        first, second = [(seen.annotation, seen.default, seen.description) for name, seen in fields if name == one]
        assert first == second
    # A simulation has settings of servers and workers; without a word it does what they do.
    shared = SimulationSettings.model_fields.keys() & set(names)
    assert shared >= {"workers", "rule", "eta", "batch_size", "order", "steps"}
    # But for the rule: a simulation has no script whose optimizer could decide it.
    for name, field in fields:
        if name in shared - {"rule"}:
            assert SimulationSettings.model_fields[name].default == field.default, name


def test_bad_settings_exit_with_2_and_one_line() -> None:
    done = gemps_here("serve", "--eta", "-1")
    assert done.returncode == USAGE
    assert done.stderr == "gemps: --eta -1: should be greater than 0\n"
    assert done.stdout == ""


def test_a_wrong_value_on_which_a_default_depends_is_one_complaint() -> None:
    assert gemps_here("serve", "--clip-norm", "-1").stderr == (
        "gemps: --clip-norm -1: should be greater than or equal to 0\n"
    )


def test_fields_that_do_not_fit_together_exit_with_2_and_the_fix() -> None:
    done = gemps_here("serve", "--bind", "0.0.0.0:0")
    assert done.returncode == USAGE
    assert done.stderr.count("\n") == 1
    assert "--insecure" in done.stderr


class Frame(BaseModel):
    """The table [frame]: what surrounds a picture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=1, ge=1, description="Width.")
    colour: str = Field(default="black", description="Colour.")


class Pictures(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="GEMPS_", env_nested_delimiter="_", env_nested_max_split=1, frozen=True, extra="forbid"
    )

    size: int = Field(3, description="Size.")
    rare: int = Field(4, description="Rarely set.")
    own: int = Field(5, description="Set by the command.")
    frame: Frame = Frame()


def hang(*arguments: str) -> tuple[Pictures, Given]:
    """What a command sees whose options are not all that can be set."""
    seen: list[tuple[Pictures, Given]] = []

    @with_options(OptionGroup(Pictures, "Pictures", frozenset({"own"}), frozenset({"size"})), known=[Pictures])
    def hang(given: Given) -> None:
        seen.append((given.load(Pictures), given))

    app = typer.Typer()
    app.command()(hang)
    app.command()(other)
    result = CliRunner().invoke(app, ["hang", *arguments])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return seen[0]


def test_what_has_no_option_is_set_by_its_key() -> None:
    settings, given = hang("--set", "rare=7", "--set", "frame.width=2", "--size", "9", "--set=size=1")
    assert (settings.rare, settings.frame.width, settings.size) == (7, 2, 9)
    assert given.arguments(Pictures) == ["--rare=7", "--set=frame.width=2", "--size=9"]
    assert given.command_line() == ["--size=9", "--set=rare=7", "--set=frame.width=2", "--set=size=1"]
    assert hang(*given.command_line())[0] == settings


def test_set_beats_the_environment_which_beats_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('size = 1\n[frame]\nwidth = 6\ncolour = "red"\n', encoding="utf-8")
    file = ("--config", str(config))
    assert hang(*file)[0].frame == Frame(width=6, colour="red")
    monkeypatch.setenv("GEMPS_FRAME_WIDTH", "7")
    assert hang(*file)[0].frame == Frame(width=7, colour="red")
    assert hang(*file, "--set", "frame.width=8")[0].frame == Frame(width=8, colour="red")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "frame.width=0"], "--set frame.width 0: should be greater than or equal to 1"),
        (["--set", "frame.widht=2"], "--set frame.widht=2: there is no setting 'frame.widht'; did you mean"),
        (["--set", "frame=2"], "--set frame=2: there is no setting 'frame'"),
        (["--set", "size"], "--set size: write KEY=VALUE, for example"),
        (["--set", "own=1"], "--set own=1: this command sets own itself: leave it out"),
        (["--set", "chunk_bytes=1"], "--set chunk_bytes is gone: write chunk_bytes below [limits]"),
    ],
)
def test_a_wrong_set_is_one_line_with_the_fix(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        hang(*arguments)
    assert str(caught.value).startswith(message)
    assert caught.value.code == USAGE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frame = 2\n", "frame is a table: write \\[frame\\], and its settings below it"),
        ("[frame]\nwidht = 2\n", "there is no setting 'frame.widht'; did you mean 'frame.width'"),
        ("[frame]\nwidth = 0\n", "frame.width = 0: should be greater than or equal to 1"),
    ],
)
def test_a_wrong_table_of_the_file_is_refused(text: str, message: str, config: Path) -> None:
    config.write_text(text, encoding="utf-8")
    with pytest.raises(CommandError, match=message):
        hang("--config", str(config))


def test_settings_of_the_server_that_moved_say_where_to(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("staging_buffers = 4\n", encoding="utf-8")
    with pytest.raises(CommandError, match=r"staging_buffers is gone: write staging_buffers below \[limits\] in the"):
        Given({}, config, KNOWN).load(ServerSettings)
    assert Given({}, config, KNOWN).load(SimulationSettings).staging_buffers == 4
    monkeypatch.setenv("GEMPS_CHUNK_BYTES", "8192")
    with pytest.raises(CommandError, match=r"^GEMPS_CHUNK_BYTES is gone: .* or the variable GEMPS_LIMITS_CHUNK_BYTES$"):
        Given({}, None, KNOWN).load(ServerSettings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits.threads]\na = 4\n", r"^\S+run.toml: limits.threads = \{'a': 4\}: should be a valid integer$"),
        ('[rule]\nmomentum = "a"\n', r"^\S+run.toml: rule_settings = .* is not NAME=VALUE with a number; "),
        (
            'rule_settings = "kappa=2"\n[rule]\nmomentum = 0.9\n',
            r"run.toml: rule_settings and the table \[rule\] both have the rule's numbers: write all in one$",
        ),
    ],
)
def test_a_wrong_table_of_the_server_names_the_file_and_the_key(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CommandError, match=message):
        Given({}, path, KNOWN).load(ServerSettings)


def test_a_wrong_variable_of_a_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_LIMITS_THREAD", "1")
    said = r"^GEMPS_LIMITS_THREAD: there is no such setting; did you mean GEMPS_LIMITS_THREADS\?$"
    with pytest.raises(CommandError, match=said):
        Given({}, None, KNOWN).load(ServerSettings)
    assert not misspelt(["GEMPS_LIMITS_THREAD"])  # whose line says that it is ignored
