"""ClientSettings: every field has a unit, a default and a consequence; the environment sets it; nonsense is refused."""

import pytest
from gem_worker.client import Client, ClientSettings, Observer
from pydantic import ValidationError


def test_every_field_says_its_unit_and_default() -> None:
    for name, field in ClientSettings.model_fields.items():
        assert field.description is not None
        if isinstance(field.default, float):
            assert field.description.startswith(f"Seconds (default {field.default:g})"), name


def test_environment_sets_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_CLIENT_CONNECT_TIMEOUT", "7.5")
    assert ClientSettings().connect_timeout == 7.5


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_CLIENT_CONNECT_TIMEOUT", "soon")
    monkeypatch.setenv("GEMPS_CLIENT_LANE", "perhaps")
    with pytest.raises(ValueError, match=r"\AGEMPS_CLIENT_CONNECT_TIMEOUT: .*; GEMPS_CLIENT_LANE: [^\n]*\Z"):
        Client("127.0.0.1:1", worker_name="one", layout=[])
    monkeypatch.undo()
    monkeypatch.setenv("GEMPS_CLIENT_TLS_CERT", "client.crt")
    with pytest.raises(ValueError, match=r"\AGEMPS_CLIENT_TLS_CERT and GEMPS_CLIENT_TLS_KEY belong together"):
        Observer("127.0.0.1:1")


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
