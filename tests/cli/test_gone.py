"""What is gone says what to use instead."""

from pathlib import Path
from typing import Any

import pytest
from gem_cli import gone
from gem_cli.environment import misspelt
from gem_cli.errors import USAGE
from gem_cli.gone import Gone
from gem_cli.main import app
from gem_cli.setting_keys import fields, variable
from gem_server.settings import ServerSettings
from gem_worker.settings import WorkerSettings
from typer.main import get_command

from tests.cli.processes import gemps_here

_INSTEAD = "use --eta"


@pytest.fixture
def flavour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting of the server that is gone in all its forms."""
    monkeypatch.setitem(gone.SETTINGS, "server_flavour", Gone(_INSTEAD, (ServerSettings,)))


@pytest.mark.usefixtures("flavour")
@pytest.mark.parametrize("form", ["--server-flavour", "--no-server-flavour"])
@pytest.mark.parametrize("command", [["serve"], ["train"], ["launch", "ray", "--workers=2"]])
def test_a_removed_flag_is_one_line_with_what_to_use_instead(command: list[str], form: str) -> None:
    ended = gemps_here(*command, f"{form}=mild")
    assert (ended.returncode, ended.stderr) == (USAGE, f"gemps: {form} is gone: {_INSTEAD}\n")


@pytest.mark.usefixtures("flavour")
def test_a_removed_key_is_one_line_with_its_file_and_what_to_use_instead(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('server_flavour = "mild"\n', encoding="utf-8")
    ended = gemps_here("serve", "--config", str(path))
    assert (ended.returncode, ended.stderr) == (USAGE, f"gemps: --config {path}: server_flavour is gone: {_INSTEAD}\n")


@pytest.mark.usefixtures("flavour")
def test_a_removed_variable_ends_the_commands_that_read_it() -> None:
    env = {"GEMPS_SERVER_FLAVOUR": "mild"}
    ended = gemps_here("serve", env=env)
    assert (ended.returncode, ended.stderr) == (USAGE, f"gemps: GEMPS_SERVER_FLAVOUR is gone: {_INSTEAD}\n")
    assert "is gone" not in gemps_here("status", "127.0.0.1:9", env=env).stderr
    assert misspelt(env) == {}


def test_variables_of_the_table_tls_are_taken_though_the_settings_of_these_names_are_gone(tmp_path: Path) -> None:
    missing = tmp_path / "server.crt"
    ended = gemps_here("serve", env={"GEMPS_TLS_CERT": str(missing), "GEMPS_TLS_KEY": str(missing)})
    assert "is gone" not in ended.stderr
    assert ended.stderr.startswith(f"gemps: tls.cert {missing} cannot be read")


def test_no_setting_of_now_has_the_text_of_a_removed_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (ServerSettings, WorkerSettings):
        for key in fields(settings):
            monkeypatch.setenv(variable(settings, key), "")
        gone.refuse_variables(settings)


@pytest.mark.parametrize("value", [("--order", "trace"), ("--durability", "none")])
def test_a_removed_value_says_what_to_use_instead(value: tuple[str, str]) -> None:
    ended = gemps_here("serve", *value)
    assert ended.returncode == USAGE
    assert ended.stderr.startswith(f"gemps: {' '.join(value)}: is gone: ")


def test_a_removed_command_is_one_line_with_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gone.COMMANDS, "fly", "gemps train walks")
    ended = gemps_here("fly", "--high")
    assert (ended.returncode, ended.stderr) == (USAGE, "gemps: gemps fly is gone: gemps train walks\n")


def test_nothing_that_is_gone_is_still_there() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    assert not gone.COMMANDS.keys() & commands.keys()
    for name, setting in gone.SETTINGS.items():
        assert all(name not in one.model_fields for one in setting.settings), name


@pytest.mark.parametrize("flag", sorted(gone.OF_OTHERS))
def test_a_flag_of_other_tools_leads_to_the_right_one(flag: str) -> None:
    done = gemps_here("train", flag, "0.1")
    assert done.returncode == USAGE
    assert done.stderr == f"gemps: gemps has no {flag}: {gone.OF_OTHERS[flag]}\n"
    assert "optimizer=" in done.stderr
    assert "--eta" in done.stderr
