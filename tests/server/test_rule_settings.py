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
from gem_core.rules import Setting, known_settings


@pytest.mark.parametrize("rule", rule_names())
def test_every_rule_of_the_core_can_be_chosen(rule: str) -> None:
    assert ServerSettings(rule=rule).rule == rule


def test_the_choices_that_help_shows_are_the_rules_of_gemps() -> None:
    extra = ServerSettings.model_fields["rule"].json_schema_extra
    assert isinstance(extra, dict)
    assert extra["choices"] == ["auto", *rule_names()]


@pytest.mark.parametrize(
    ("given", "eta"),
    [
        ({}, 0.002),
        ({"rule": "gem"}, 0.05),
        ({"direction": "rms"}, 0.001),
        ({"direction": "rms", "eta": 0.1}, 0.1),
        ({"direction": "auto"}, 0.002),
        ({"rule": "auto"}, 0.002),
        ({"rule": "auto", "direction": "rms"}, 0.001),
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


def test_what_is_not_given_is_left_to_the_rule() -> None:
    assert ServerSettings().settings_of_rule() == {}
    assert ServerSettings(rule_settings="kappa=2", local_steps=4).settings_of_rule() == {"kappa": 2, "local_steps": 4}
    assert ServerSettings(rule="agn", local_steps=3).settings_of_rule() == {"local_steps": 3}


def test_settings_that_are_not_given_follow_from_the_direction() -> None:
    """Workers have the momentum then; what is given wins, number by number."""
    expected = {"momentum": 0, "kappa": 2, "pi_max": 1, "signed_gap": 1, "epsilon": 1e-30}
    assert ServerSettings(rule="gem", direction="auto").settings_of_rule() == expected
    given = ServerSettings(rule="gem", direction="auto", rule_settings="kappa=3", weight_decay=0.5)
    assert given.settings_of_rule() == expected | {"kappa": 3, "weight_decay": 0.5}
    assert ServerSettings(rule="auto").settings_of_rule("auto") == expected
    assert ServerSettings(rule="downpour", direction="auto").settings_of_rule() == {}
    assert ServerSettings(rule="gem", direction="rms").settings_of_rule() == {}


def test_a_checkpoint_and_a_log_need_memory_for_copies_of_what_the_rule_keeps(tmp_path: Path) -> None:
    def vectors(**settings: object) -> int:
        return Server(ServerSettings(data_dir=tmp_path, **settings)).memory.vectors_per_run

    assert Server(ServerSettings(rule="delayed-nesterov")).memory.vectors_per_run == 2
    assert vectors(rule="delayed-nesterov") == 2 + 2
    assert vectors(rule="delayed-nesterov", durability="commit") == 2 + 2 + 3 * 2
    assert vectors(durability="commit") == 0
    assert vectors(rule="dana", durability="commit") == 1 + 3


@pytest.mark.parametrize("setting", known_settings("gem"))
def test_a_setting_of_gem_takes_exactly_what_the_rule_takes(setting: Setting) -> None:
    more = {"pi_max": {"pi_min": setting.least}, "pi_min": {"pi_max": setting.most}, "local_rate": {"local_steps": 2}}
    for value in (setting.least, setting.most, setting.default):
        chosen = {setting.name: value} | more.get(setting.name, {})
        assert Server(ServerSettings(rule_settings=chosen)).rule.settings[setting.name] == value
    for value in (math.nextafter(setting.least, -math.inf), math.nextafter(setting.most, math.inf)):
        with pytest.raises(ValidationError, match=f"--rule-settings: rule 'gem': {setting.name} = .* is out of range"):
            ServerSettings(rule_settings={setting.name: value})


@pytest.mark.parametrize("name", ["weight_decay", "local_steps"])
def test_a_setting_that_is_a_flag_too_has_the_same_bounds(name: str) -> None:
    (setting,) = (one for one in known_settings("gem") if one.name == name)
    for value in (setting.least, setting.most):
        assert ServerSettings(eta=0.01, **{name: value}).settings_of_rule() == {name: value}
    for value in (setting.least - 1, setting.most + 1):
        with pytest.raises(ValidationError):
            ServerSettings(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "dc-asgd", "direction": "rms"}, "'dc-asgd' needs gradients: choose direction gradient, or another"),
        ({"direction": "muon"}, "Input should be 'gradient', 'rms' or 'auto'"),
        ({"clip_norm": "-1"}, "greater than or equal to 0"),
        ({"clip_norm": "inf"}, "finite number"),
        ({"eta": "inf"}, "finite number"),
        ({"epochs": "inf"}, "finite number"),
        (
            {"min_workers": 3, "limits": {"max_sessions": 2}},
            "--min-workers 3 is more than limits.max_sessions 2 admits",
        ),
        ({"rule_settings": "local_rate=0.5"}, "local_rate needs --local-steps: leave it out, or add --local-steps 4"),
        ({"rule_settings": "mu=0.5"}, "--rule-settings: rule 'gem' has no setting 'mu'; its settings are: momentum"),
        ({"rule_settings": "local_steps=2.5"}, "local_steps = 2.5 must be a whole number"),
        (
            {"rule_settings": "local_steps=2", "local_steps": 2},
            "local_steps is given here and as --local-steps: give one",
        ),
        ({"rule": "gems"}, "no update rule 'gems'; choose one of: gem, downpour"),
        ({"rule": "easgd", "rule_settings": "alpha"}, "'alpha' is not NAME=VALUE with a number; write for example"),
        ({"rule": "easgd", "rule_settings": "alpha=much"}, "'alpha=much' is not NAME=VALUE"),
        ({"rule": "easgd", "rule_settings": "=1"}, "'=1' is not NAME=VALUE"),
        ({"rule": "easgd", "rule_settings": "alpha=inf"}, "'alpha=inf' is not NAME=VALUE"),
        ({"rule": "easgd", "rule_settings": "alpha=1,alpha=0"}, "alpha is given twice"),
        (
            {"rule": "downpour", "rule_settings": "weight_decay=1", "weight_decay": 1},
            "weight_decay is given here and as --weight-decay: give one",
        ),
        ({"rule": "downpour", "weight_decay": 10, "eta": 0.2}, "leaves nothing of the parameters"),
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
