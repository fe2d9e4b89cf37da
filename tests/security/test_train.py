"""`gemps train` with TLS, client certificates and tokens, end to end; and what a stranger sees of such a server."""

import json
from pathlib import Path

import pytest

from tests.cli.processes import gemps, gemps_here
from tests.security.authority import Authority, replace

TOKEN = "operator-of-this-test"  # its workers, and the command itself, which follows the status


@pytest.mark.long
def test_a_training_runs_with_tls_client_certificates_and_tokens(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.pair("server").write(tmp_path, "server")
    own, own_key = authority.pair("worker").write(tmp_path, "worker")
    tokens = replace(tmp_path / "tokens", f"operator {TOKEN}\n")
    folder = tmp_path / "run"
    server = (
        f"--set=tls.cert={certificate}",
        f"--set=tls.key={key}",
        f"--set=tls.client_ca={authority.file}",
        f"--set=tls.tokens={tokens}",
    )
    client = {
        "GEMPS_CLIENT_TLS_CA": str(authority.file),
        "GEMPS_CLIENT_TLS_CERT": str(own),
        "GEMPS_CLIENT_TLS_KEY": str(own_key),
        "GEMPS_CLIENT_TOKEN_FILE": str(replace(tmp_path / "token", TOKEN)),
    }
    arguments = ("train", "--workers=1", "--steps=20", "--device=cpu", f"--run-dir={folder}", *server)
    done = gemps(*arguments, env=client)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["accuracy"] > 0.1
    log = (folder / "logs/server.log").read_text(encoding="utf-8")
    assert "with TLS, client certificates and tokens asked for" in log
    assert "refused" not in log
    for file in folder.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("GEMPS_CLIENT_TLS_CA", "nowhere/ca.crt", "GEMPS_CLIENT_TLS_CA nowhere/ca.crt cannot be read"),
        ("GEMPS_CLIENT_TOKEN_FILE", "nowhere/token", "GEMPS_CLIENT_TOKEN_FILE nowhere/token cannot be read"),
        ("GEMPS_CLIENT_CREDENTIALS", "nowhere", "GEMPS_CLIENT_TLS_CA nowhere/ca.crt cannot be read"),
        ("GEMPS_CLIENT_TLS_CERT", "client.crt", "GEMPS_CLIENT_TLS_CERT and GEMPS_CLIENT_TLS_KEY belong together"),
        ("GEMPS_CLIENT_TOKEN", "a secret of mine", "GEMPS_CLIENT_TOKEN: is no token"),
    ],
)
@pytest.mark.parametrize("command", ["train", "work", "status"])
def test_credentials_that_cannot_be_used_are_one_line_and_show_no_secret(
    command: str, variable: str, value: str, says: str, tmp_path: Path
) -> None:
    done = gemps_here(command, env={variable: value}, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("server", "client", "says"),
    [
        (
            ("--set=tls.cert=s.crt", "--set=tls.key=s.key"),
            {},
            "the server would speak TLS, and its workers have no credentials",
        ),
        (
            ("--set=tls.cert=s.crt", "--set=tls.key=s.key", "--set=tls.client_ca=ca"),
            {"TLS_CA": "system"},
            "a client certificate",
        ),
        (
            ("--set=tls.tokens=tokens",),
            {},
            "ask for a token, and its workers have no credentials for that: set GEMPS_CLIENT_CREDENTIALS",
        ),
    ],
)
def test_a_training_whose_workers_the_server_would_turn_away_does_not_start(
    server: tuple[str, ...], client: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = gemps_here(
        "train", *server, env={f"GEMPS_CLIENT_{name}": value for name, value in client.items()}, cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("from_file", [False, True], ids=["environment", "file"])
def test_a_training_with_a_workers_token_does_not_start(from_file: bool, tmp_path: Path) -> None:
    tokens = replace(tmp_path / "tokens", f"operator {TOKEN}\nworker {TOKEN[::-1]}\n")
    env = {"GEMPS_CLIENT_TOKEN": TOKEN[::-1]}
    if from_file:
        (folder := tmp_path.parent / f"{tmp_path.name}-client").mkdir()
        env = {"GEMPS_CLIENT_TOKEN_FILE": str(replace(folder / "token", f"{TOKEN[::-1]}\n"))}
    done = gemps("train", f"--set=tls.tokens={tokens}", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "gemps train needs a token of the role operator" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["tokens"]


def test_beyond_loopback_a_server_wants_tls_or_to_be_told() -> None:
    done = gemps_here("serve", "--bind=0.0.0.0:0")
    assert done.returncode == 2
    assert "tls.cert" in done.stderr
    assert "--insecure" in done.stderr
    half = gemps_here("serve", "--set=tls.cert=server.crt")
    assert half.returncode == 2
    assert "tls.cert and tls.key belong together" in half.stderr
    without = gemps_here("serve", "--set=tls.client_ca=ca.crt")
    assert without.returncode == 2
    assert "tls.client_ca needs tls.cert" in without.stderr
