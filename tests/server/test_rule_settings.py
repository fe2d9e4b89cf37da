"""Which rule a server is told to use, and with which settings."""

import math
from pathlib import Path
from typing import Any

import pytest
from gem_server.errors import StartupError
from gem_server.server import Server
from gem_server.settings import ServerSettings
from pydantic import ValidationError

from gem_core import rule_names
from gem_core.rule_settings import PRECONDITION_SETTINGS
from gem_core.rules import Setting, known_settings


@pytest.mark.parametrize("rule", rule_names())
def test_every_rule_of_the_core_can_be_chosen(rule: str) -> None:
    assert ServerSettings(rule=rule).rule == rule


def test_the_choices_that_help_shows_are_the_rules_of_gemps() -> None:
    extra = ServerSettings.model_fields["rule"].json_schema_extra
    assert isinstance(extra, dict)
    assert extra["choices"] == list(rule_names())


@pytest.mark.parametrize(
    ("given", "eta"),
    [
        ({}, 0.05),
        ({"precondition": "rms"}, 0.001),
        ({"direction": "spectral"}, 0.001),
        ({"direction": "spectral", "eta": 0.1}, 0.1),
    ],
)
def test_the_learning_rate_by_default_is_that_of_the_step(given: dict[str, Any], eta: float) -> None:
    assert ServerSettings(**given).eta == eta


def test_a_rule_of_another_package_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gemps_mine-1.0.dist-info").mkdir()
    (tmp_path / "gemps_mine-1.0.dist-info" / "METADATA").write_text("Name: gemps_mine\nVersion: 1.0\n")
    (tmp_path / "gemps_mine-1.0.dist-info" / "entry_points.txt").write_text("[gemps.rules]\nmine = gemps_mine:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = ServerSettings(rule="mine", rule_settings="share=0.5")
    assert settings.settings_of_rule() == {"share": 0.5}
    with pytest.raises(StartupError, match=r"'mine' of gemps_mine 1\.0 cannot be loaded"):
        Server(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("alpha=0.25", {"alpha": 0.25}),
        (" alpha = 1e-1 , period=5,", {"alpha": 0.1, "period": 5}),
        ({"alpha": 0.25, "period": 5}, {"alpha": 0.25, "period": 5}),
    ],
)
def test_settings_of_a_rule_are_pairs_or_a_table(text: object, expected: dict[str, float]) -> None:
    assert ServerSettings(rule="easgd", rule_settings=text).settings_of_rule() == expected


def test_settings_of_a_rule_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_RULE", "ringmaster")
    monkeypatch.setenv("GEMPS_RULE_SETTINGS", "threshold=4")
    assert Server(ServerSettings()).rule.settings == {"threshold": 4}


def test_flags_of_gem_are_for_gem_alone() -> None:
    assert ServerSettings(kappa=2).settings_of_rule()["kappa"] == 2
    assert ServerSettings(rule="dana").settings_of_rule() == {}
    assert ServerSettings(rule="dana", rule_settings="momentum=0.5").settings_of_rule() == {"momentum": 0.5}


def test_flags_of_the_preconditioner_reach_its_rule() -> None:
    rule = Server(ServerSettings(precondition="averaged-rms", beta2=0.9, precondition_cap=3, kappa=2)).rule
    assert (rule.name, rule.precondition) == ("gem", "averaged-rms")
    assert {name: rule.settings[name] for name in ("beta2", "precondition_epsilon", "precondition_cap", "kappa")} == {
        "beta2": 0.9,
        "precondition_epsilon": 1e-8,
        "precondition_cap": 3,
        "kappa": 2,
    }
    assert "beta2" not in Server(ServerSettings()).rule.settings


def test_a_checkpoint_and_a_log_need_memory_for_copies_of_what_the_rule_keeps(tmp_path: Path) -> None:
    def vectors(**settings: object) -> int:
        return Server(ServerSettings(data_dir=tmp_path, **settings)).memory.vectors_per_run

    assert Server(ServerSettings(precondition="averaged-rms")).memory.vectors_per_run == 2
    assert vectors(precondition="averaged-rms") == 2 + 2
    assert vectors(precondition="averaged-rms", durability="commit") == 2 + 2 + 3 * 2
    assert vectors(durability="commit") == 0
    assert vectors(rule="dana", durability="commit") == 1 + 3


@pytest.mark.parametrize("setting", PRECONDITION_SETTINGS)
def test_a_flag_of_the_preconditioner_takes_exactly_what_the_rule_takes(setting: Setting) -> None:
    for value in (setting.least, setting.most, setting.default):
        chosen = ServerSettings(precondition="rms", **{setting.name: value})
        assert Server(chosen).rule.settings[setting.name] == value
    for value in (math.nextafter(setting.least, -math.inf), math.nextafter(setting.most, math.inf)):
        with pytest.raises(ValidationError):
            ServerSettings(precondition="rms", **{setting.name: value})


@pytest.mark.parametrize("setting", known_settings("gem"))
def test_a_flag_of_gem_takes_exactly_what_the_rule_takes(setting: Setting) -> None:
    for value in (setting.least, setting.most, setting.default):
        chosen = {setting.name: value} | ({"pi_min": value} if setting.name == "pi_max" else {})
        if setting.name == "pi_min":
            chosen["pi_max"] = setting.most
        if setting.name == "local_rate":
            chosen["local_steps"] = 2
        assert Server(ServerSettings(**chosen)).rule.settings[setting.name] == value
    for value in (math.nextafter(setting.least, -math.inf), math.nextafter(setting.most, math.inf)):
        with pytest.raises(ValidationError):
            ServerSettings(**{setting.name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rule": "dana", "precondition": "rms"},
            "'dana' has no preconditioner: choose rule gem, or precondition none",
        ),
        ({"rule": "dc-asgd", "direction": "rms"}, "'dc-asgd' needs gradients: choose direction gradient, or another"),
        ({"direction": "muon"}, "Input should be 'gradient', 'rms' or 'spectral'"),
        ({"clip_norm": "-1"}, "greater than or equal to 0"),
        ({"clip_norm": "inf"}, "finite number"),
        ({"eta": "inf"}, "finite number"),
        ({"epochs": "inf"}, "finite number"),
        ({"min_workers": "3", "max_sessions": "2"}, "--min-workers 3 is more than --max-sessions 2 admits"),
        ({"precondition": "adam"}, "Input should be 'none', 'rms' or 'averaged-rms'"),
        ({"local_rate": 0.5}, "--local-rate needs --local-steps: leave it out, or add --local-steps 4"),
        ({"beta2": 0.5}, "--beta2 needs a preconditioner: leave it out, or add --precondition rms"),
        ({"rule": "downpour", "beta2": 0.5}, "--beta2 is gem's, and the rule is downpour: leave it out, or choose"),
        ({"rule": "dc-asgd", "kappa": 2}, "--kappa is gem's, .*: leave it out, .*; dc-asgd's own settings go into"),
        ({"precondition": "rms", "rule_settings": "beta2=0.5"}, "use the flag --beta2"),
        ({"rule": "gems"}, "no update rule 'gems'; choose one of: gem, downpour"),
        ({"rule": "easgd", "rule_settings": "alpha"}, "'alpha' is not NAME=VALUE with a number; write for example"),
        ({"rule": "easgd", "rule_settings": "alpha=much"}, "'alpha=much' is not NAME=VALUE"),
        ({"rule": "easgd", "rule_settings": "=1"}, "'=1' is not NAME=VALUE"),
        ({"rule": "easgd", "rule_settings": "alpha=inf"}, "'alpha=inf' is not NAME=VALUE"),
        ({"rule": "easgd", "rule_settings": "alpha=1,alpha=0"}, "alpha is given twice"),
        ({"rule": "downpour", "rule_settings": "weight_decay=1"}, "use the flag --weight-decay"),
        ({"rule": "downpour", "weight_decay": 10, "eta": 0.2}, "leaves nothing of the parameters"),
        ({"rule_settings": "pi_max=2"}, "use the flag --pi-max"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServerSettings(**settings)


@pytest.mark.parametrize(
    ("rule", "chosen", "message"),
    [
        ("easgd", "beta=1", "'easgd' has no setting 'beta'; its settings are: alpha, momentum, period"),
        ("easgd", "alpha=2", "alpha = 2 is out of range"),
        ("downpour", "alpha=1", "'downpour' has no setting 'alpha'; its settings are: weight_decay"),
    ],
)
def test_what_the_rule_does_not_know_ends_the_server_at_its_start(rule: str, chosen: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        Server(ServerSettings(rule=rule, rule_settings=chosen))
