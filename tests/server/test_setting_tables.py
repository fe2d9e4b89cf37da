"""The tables [limits] and [tls]: in Python, by variables, and beside --credentials."""

from pathlib import Path

import pytest
from gem_cli.setting_keys import explicit, fields, flat, nested, variable
from gem_server.setting_tables import LimitSettings, TlsSettings
from gem_server.settings import ServerSettings
from pydantic import ValidationError

EXAMPLES = {name: str(int(field.default) + 5000) for name, field in LimitSettings.model_fields.items()}


@pytest.mark.parametrize(("name", "value"), EXAMPLES.items())
def test_each_limit_can_be_given_by_a_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GEMPS_LIMITS_{name.upper()}", value)
    assert variable(ServerSettings, f"limits.{name}") == f"GEMPS_LIMITS_{name.upper()}"
    settings = ServerSettings()
    assert explicit(settings) == {f"limits.{name}": int(value)}
    assert settings.limits == LimitSettings(**{name: value})


def test_each_file_of_tls_can_be_given_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TlsSettings.model_fields:
        monkeypatch.setenv(f"GEMPS_TLS_{name.upper()}", f"{name}.file")
    files = {name: Path(f"{name}.file") for name in ("cert", "key", "client_ca", "tokens")}
    assert ServerSettings().tls == TlsSettings(**files)


def test_variables_and_arguments_of_one_table_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_LIMITS_CHUNK_BYTES", "8192")
    monkeypatch.setenv("GEMPS_LIMITS_THREADS", "3")
    limits = ServerSettings(limits={"threads": 2}).limits
    assert (limits.chunk_bytes, limits.threads, limits.max_sessions) == (8192, 2, 1024)


def test_files_of_the_table_take_precedence_over_those_of_the_credentials(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch()
    tls = ServerSettings(credentials=tmp_path, tls={"key": "other.key"}).tls
    assert tls == TlsSettings(cert=tmp_path / "server.crt", key=Path("other.key"), tokens=tmp_path / "tokens")
    assert ServerSettings(credentials=tmp_path, tls=tls).tls == tls


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls": {"cert": "a"}}, "tls.cert and tls.key belong together: give both, or neither"),
        ({"tls": {"client_ca": "a"}}, "tls.client_ca needs tls.cert and tls.key"),
        ({"limits": {"chunk_bytes": 4095}}, "greater than or equal to 4096"),
        ({"limits": {"stall_timeout": 0}}, "greater than 0"),
        ({"limits": {"chunks": 1}}, "Extra inputs are not permitted"),
        ({"chunk_bytes": 65536}, "Extra inputs are not permitted"),
        ({"order": "trace"}, "is gone: gemps replay FILE computes a recorded run again"),
        ({"min_workers": 2000}, "--min-workers 2000 is more than limits.max_sessions 1024 admits"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServerSettings(**settings)  # type: ignore[arg-type]


def test_keys_and_nested_values_are_two_forms_of_the_same() -> None:
    by_key = {"eta": 0.1, "limits.threads": 2, "tls.cert": "a"}
    assert nested(by_key) == {"eta": 0.1, "limits": {"threads": 2}, "tls": {"cert": "a"}}
    assert flat(ServerSettings, nested(by_key)) == by_key
    assert {"eta", "limits.threads", "tls.tokens"} <= fields(ServerSettings).keys()
    assert not {"limits", "tls"} & fields(ServerSettings).keys()
