"""The lines of docs/deploy.md that need more than clean machines: a firewall, an SSH server, tmux.

They are marked `show` there. All other lines of the page run in tests/docs.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.hosts.cluster import SERVER_ADDRESS, Cluster, Program
from tests.hosts.run import last_words

PAGE = Path(__file__).resolve().parents[2] / "docs/deploy.md"


def script(heading: str, on: str) -> str:
    """The one script under this heading for this machine."""
    (found,) = [one.text for one in blocks_of(PAGE) if one.shell and one.heading == heading and one.on == on]
    return found


def test_the_firewalls_rules_let_workers_in_and_nobody_else(hosts: Cluster) -> None:
    serve = ("gemps", "serve", "--bind", "0.0.0.0:50051", "--insecure", "--commits", "50")
    server = hosts.start("s", *serve)
    server.wait_for("serving on")
    hosts.run("s", "bash", "-ec", script("Firewall", "server"))
    assert last_words(ended(hosts, "w1", "gemps", "work", SERVER_ADDRESS))["steps"] == 50

    hosts.run("w2", "ip", "address", "add", "10.78.0.12/24", "dev", "eth0")
    hosts.run("s", "ip", "address", "add", "10.78.0.1/24", "dev", "eth0")
    outside = hosts.start("w2", "env", "GEMPS_CLIENT_CONNECT_TIMEOUT=3", "gemps", "work", "10.78.0.1:50051")
    assert outside.wait() == 1
    assert "no answer from a gemps server at 10.78.0.1:50051" in outside.text
    for address, reached in (("10.77.0.1", True), ("10.78.0.1", False)):
        connect = f"import socket; socket.create_connection(('{address}', 50052), 3)"
        assert (hosts.start("w2", "python3", "-c", connect).wait() == 0) == reached


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Keys, and configurations of sshd and ssh that use them."""
    missing = [name for name in ("ssh", "sshd", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"the tunnel needs {', '.join(missing)}")
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(
        f"ListenAddress 10.77.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
        "UsePAM no\nPidFile none\n",
        encoding="ascii",
    )
    (folder / "ssh_config").write_text(
        f"Host *\nIdentityFile {folder}/user\nUserKnownHostsFile {folder}/known_hosts\n"
        "StrictHostKeyChecking accept-new\n",
        encoding="ascii",
    )
    return folder


def test_a_worker_trains_through_a_tunnel_of_ssh(hosts: Cluster, keys: Path) -> None:
    heading = "Without a trusted network"
    server = hosts.start("s", "bash", "-ec", script(heading, "server"))
    server.wait_for("serving on 127.0.0.1:50051")
    begin = 'mkdir -p /run/sshd; exec "$(command -v sshd)" -D -e -f "$1"'
    sshd = hosts.start("s", "sh", "-c", begin, "sh", f"{keys}/sshd_config")
    sshd.wait_for("Server listening on 10.77.0.1")
    tunnel = 'mount --bind "$1" /etc/ssh/ssh_config; exec bash -ec "$2"'
    worker = ended(hosts, "w1", "sh", "-ec", tunnel, "sh", f"{keys}/ssh_config", script(heading, "worker-1"))
    assert last_words(worker)["steps"] == 5000
    assert server.terminate() == 0


@pytest.mark.long
def test_a_worker_trains_with_tls_and_a_token(hosts: Cluster) -> None:
    heading = "With TLS and tokens"
    server = hosts.start("s", "bash", "-ec", script(heading, "server"))
    server.wait_for("with TLS, client certificates and tokens asked for")
    stranger = hosts.start("w2", "env", "GEMPS_CLIENT_CONNECT_TIMEOUT=3", "gemps", "work", SERVER_ADDRESS)
    assert stranger.wait() == 1
    assert "GEMPS_CLIENT_TLS_CA" in stranger.text
    shutil.copytree(hosts.folder("s") / "certs/worker", hosts.folder("w1") / "certs/worker")
    worker = ended(hosts, "w1", "bash", "-ec", script(heading, "worker-1"))
    assert last_words(worker)["steps"] == 5000
    assert server.terminate() == 0


def test_a_server_in_tmux_ends_well_with_ctrl_c(hosts: Cluster, tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux here")
    tmux = ["env", f"TMUX_TMPDIR={tmp_path}"]  # one of the test's own
    hosts.run("s", *tmux, "bash", "-ec", script("Under tmux", "server"))
    worker = hosts.start("w1", "gemps", "work", SERVER_ADDRESS)
    worker.wait_for("joined: rank=0")
    hosts.run("s", *tmux, "tmux", "send-keys", "-t", "gemps", "C-c")
    worker.wait_for("connection-lost")
    latest = hosts.folder("s") / "tmux-run/latest/model.safetensors"
    worker.wait_until(latest.exists, "the server has written a checkpoint")


def ended(hosts: Cluster, host: str, *command: str) -> Program:
    """A program that has run to its end, and exited with 0."""
    program = hosts.start(host, *command)
    code = program.wait()
    assert code == 0, program.text
    return program
