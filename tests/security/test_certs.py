"""`gemps certs`: a working set, as files that only their owner reads; a run that uses it, as its own output says."""

import itertools
import json
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509

from tests.cli.processes import command, gemps, gemps_here, started, wait_for

ROLES = ("worker", "observer", "operator")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "certs"
    done = gemps("certs", str(folder), "--name=10.77.0.1", "--name=gemps.example.org")
    assert done.returncode == 0, done.stderr
    return folder


def test_each_folder_holds_what_its_machine_needs_and_no_more(made: Path) -> None:
    found = {path.name: {file.name for file in path.iterdir()} for path in made.iterdir() if path.is_dir()}
    assert found == {
        "server": {"ca.crt", "server.crt", "server.key", "tokens"},
        **{role: {"ca.crt", "client.crt", "client.key", "token"} for role in ROLES},
    }
    assert {path.name for path in made.iterdir() if path.is_file()} == {"ca.crt", "ca.key"}


def test_only_the_owner_reads_them(made: Path) -> None:
    assert {mode(path) for path in made.rglob("*") if path.is_file()} == {0o600}
    assert {mode(path) for path in (made, *made.rglob("*")) if path.is_dir()} == {0o700}


def test_for_containers_the_parts_are_readable_below_a_folder_that_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert gemps_here("certs", str(folder), "--containers").returncode == 0
    assert mode(folder) == 0o700
    assert mode(folder / "ca.key") == 0o600
    for part in ("server", *ROLES):
        assert mode(folder / part) == 0o755
        assert {mode(file) for file in (folder / part).iterdir()} == {0o644}


def test_the_servers_certificate_is_for_the_names_given_and_those_of_its_own_machine(made: Path) -> None:
    certificate = x509.load_pem_x509_certificate((made / "server/server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {
        "10.77.0.1", "gemps.example.org", "server", "localhost", "127.0.0.1", "::1",
    }  # fmt: skip


def test_nothing_is_overwritten_and_what_is_missing_is_made(made: Path) -> None:
    before = files(made)
    again = gemps_here("certs", str(made))
    assert again.returncode == 0
    assert "nothing is missing" in again.stdout
    assert files(made) == before
    for name in ("server.crt", "server.key"):
        (made / "server" / name).unlink()
    assert gemps_here("certs", str(made)).returncode == 0
    after = files(made)
    assert {name for name in before if before[name] != after[name]} == {"server/server.crt", "server/server.key"}


def test_a_name_that_the_certificate_lacks_is_refused(made: Path) -> None:
    before = files(made)
    assert "nothing is missing" in gemps_here("certs", str(made), "--name=localhost").stdout
    done = gemps_here("certs", str(made), "--name=localhost", "--name=10.77.0.2")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.search(r"server\.crt is for .*localhost.*, not for 10\.77\.0\.2: delete it and server\.key", done.stderr)
    assert files(made) == before


def test_half_a_pair_is_not_completed(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    gemps_here("certs", str(folder))
    (folder / "ca.key").unlink()
    before = files(folder)
    done = gemps_here("certs", str(folder))
    assert done.returncode == 1
    assert "ca.key is not" in done.stderr
    assert files(folder) == before


def test_names_with_underscores_and_absolute_names_are_in_the_certificate(tmp_path: Path) -> None:
    """A compose service is named my_server; DNS ends an absolute name with a dot, and a certificate does not."""
    folder = tmp_path / "certs"
    done = gemps_here("certs", str(folder), "--name=my_server", "--name=_a.b_c.example", "--name=server.example.")
    assert done.returncode == 0, done.stderr
    assert "is for my_server, _a.b_c.example, server.example, server, localhost" in done.stdout
    again = gemps_here("certs", str(folder), "--name=server.example.", "--name=my_server")
    assert "nothing is missing" in again.stdout
    assert verified(folder, "-x509_strict", "-verify_hostname", "my_server", "server/server.crt").returncode == 0


@pytest.mark.long
def test_workers_reach_servers_by_such_names_over_grpc_and_the_lane(tmp_path: Path) -> None:
    """In a mount namespace with a hosts file of its own, which is all the resolver that these names need."""
    folder = tmp_path / "certs"
    gemps_here("certs", str(folder), "--name=my_server", "--name=server.example.")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost my_server server.example server.example.\n")
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    train = [sys.executable, "-m", "tests.security.train_by_name", str(folder)]
    inside = ["unshare", "--mount", "bash", "-c", script, "bash", str(hosts)]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("it needs the right to make a mount namespace")
    names = ("my_server", "server.example.")
    done = subprocess.run([*inside, *train, *names], capture_output=True, text=True, timeout=120)
    transports = ["TRANSPORT_KIND_LANE", "TRANSPORT_KIND_GRPC"]
    assert done.stdout.split() == transports * len(names), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["http://server", "server:50051", "", "-server", "a b", "server..", ".", "x" * 64])
def test_what_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    done = gemps_here("certs", str(tmp_path / "certs"), f"--name={name}")
    assert done.returncode == 2
    assert "write a host's name or an IP address" in done.stderr
    assert not (tmp_path / "certs").exists()


def test_openssl_finds_the_certificates_good(made: Path) -> None:
    for purpose, file in (("sslserver", "server/server.crt"), *(("sslclient", f"{role}/client.crt") for role in ROLES)):
        done = verified(made, "-x509_strict", "-purpose", purpose, file)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_machine_whose_clock_is_a_day_wrong_finds_them_good(made: Path) -> None:
    for file, seconds in itertools.product(("server/server.crt", "worker/client.crt"), (-86_400, 86_400)):
        done = verified(made, "-attime", str(int(time.time()) + seconds), file)
        assert done.returncode == 0, done.stdout + done.stderr


def verified(made: Path, *how: str) -> subprocess.CompletedProcess[str]:
    """What openssl thinks of a certificate that the authority signed."""
    line = ["openssl", "verify", "-CAfile", "ca.crt", *how]
    try:
        return subprocess.run(line, cwd=made, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl here")


def test_a_run_with_what_was_made(made: Path, tmp_path: Path) -> None:
    """As the command's own output says: server, worker, status; and who shows the wrong folder is turned away."""
    ready, log = tmp_path / "ready.json", tmp_path / "server.log"
    serve = command(
        "serve", "--bind=0.0.0.0:0", f"--credentials={made / 'server'}", "--steps=30", f"--ready-file={ready}"
    )
    with started(serve, log) as process:
        wait_for(ready.exists, process, log)
        address = f"localhost:{json.loads(ready.read_text())['port']}"
        work = ("work", address, "--device=cpu", "--log-interval=0")
        without = gemps("status", address)
        assert without.returncode == 1
        assert "if it uses TLS, give --credentials" in without.stderr
        observer = gemps(*work, f"--credentials={made / 'observer'}")
        assert observer.returncode == 2
        assert "role observer does not allow Join" in observer.stderr
        worker = gemps(*work, env={"GEMPS_CLIENT_CREDENTIALS": str(made / "worker")})
        assert worker.returncode == 0, worker.stderr
        status = gemps_here("status", address, "--json", "--credentials", str(made / "observer"))
        assert json.loads(status.stdout)["commits"] == 30
        evaluate = ("evaluate", "--server", address, "--task=digits", "--report")
        assert gemps_here(*evaluate, "--credentials", str(made / "worker")).returncode == 2
        done = gemps_here(*evaluate, "--credentials", str(made / "observer"), "--json")
        assert json.loads(done.stdout)["accuracy"] > 0.1, done.stderr
    text = log.read_text()
    for role in ROLES:
        assert (made / role / "token").read_text().strip() not in text
    assert re.search(r"serving on .*with TLS, client certificates and tokens asked for", text)
