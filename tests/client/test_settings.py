"""ClientSettings: every field has a unit, a default and a consequence; the environment sets it; nonsense is refused."""

import pytest
from gem_worker.client import ClientSettings
from pydantic import ValidationError


def test_every_field_says_its_unit_and_default() -> None:
    for name, field in ClientSettings.model_fields.items():
        assert field.description is not None
        if isinstance(field.default, float):
            assert field.description.startswith(f"Seconds (default {field.default:g})"), name


def test_environment_sets_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_CLIENT_CONNECT_TIMEOUT", "7.5")
    assert ClientSettings().connect_timeout == 7.5


@pytest.mark.parametrize("value", [0, -1, "soon", "inf", "nan"])
def test_time_must_be_positive(value: object) -> None:
    with pytest.raises(ValidationError, match="progress_timeout"):
        ClientSettings(progress_timeout=value)  # type: ignore[arg-type]


def test_only_patience_may_be_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_CLIENT_CONNECT_TIMEOUT", "inf")
    assert ClientSettings().connect_timeout == float("inf")


def test_settings_are_frozen_and_complete() -> None:
    settings = ClientSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.connect_timeout = 1.0
    with pytest.raises(ValidationError, match="patience"):
        ClientSettings(patience=3)  # type: ignore[call-arg]
