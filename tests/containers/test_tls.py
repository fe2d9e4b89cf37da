"""The project with TLS, client certificates and tokens, from what `gemps certs --containers` makes."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .project import CLEAN, Project, logs, wait_until


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_with_tls_ends_well_and_keeps_strangers_out(project: Project, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    made = [sys.executable, "-m", "gem_cli", "certs", str(certs), "--containers"]
    subprocess.run(made, env=CLEAN, check=True, capture_output=True)
    assert stat.S_IMODE(certs.stat().st_mode) == 0o700
    with project.up(
        "--scale",
        "worker=2",
        files=("docker-compose.yml", "docker/compose.tls.yml"),
        CERTS=certs,
        GEMPS_COMMITS=100_000_000,
        GEMPS_MIN_WORKERS=2,
        GEMPS_LIMITS_EXIT_LINGER=0,
    ) as up:
        wait_until(lambda: len(project.containers("worker")) == 2, "two containers", up)
        (server,) = project.containers("server")
        wait_until(lambda: "training starts" in logs(server), "training has started", up)
        look = ("run", "--rm", "--no-deps", "-T")
        status, finish = (("worker", "gemps", name, "server:50051") for name in ("status", "finish"))
        with pytest.raises(AssertionError, match="GEMPS_CLIENT_TLS_CA"):
            project.compose(*look, "--env=GEMPS_CLIENT_CREDENTIALS=", *status)
        with pytest.raises(AssertionError, match="role worker does not allow GetStatus"):
            project.compose(*look, *status)
        observer, operator = (
            (f"--volume={certs}/{role}:/{role}:ro", f"--env=GEMPS_CLIENT_CREDENTIALS=/{role}")
            for role in ("observer", "operator")
        )
        assert json.loads(project.compose(*look, *observer, *status, "--json"))["run_state"]
        with pytest.raises(AssertionError, match="role observer does not allow Control"):
            project.compose(*look, *observer, *finish)
        project.compose(*look, *operator, *finish)
        up.wait(900)
    assert up.returncode == 0
    assert set(project.exit_codes().values()) == {0}
    assert "with TLS, client certificates and tokens asked for" in logs(server)
    assert "an operator finishes the run" in logs(server)
    everything = "".join(logs(one) for one in (server, *project.containers("worker")))
    for role in ("worker", "observer", "operator"):
        assert (certs / role / "token").read_text(encoding="utf-8").strip() not in everything
