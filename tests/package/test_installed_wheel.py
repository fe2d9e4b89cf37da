"""The wheel in a virtual environment of its own, outside the checkout, without PyTorch (`make test-package`)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0

pytestmark = pytest.mark.skipif(
    os.environ.get("GEMPS_TEST_PACKAGE") != "1", reason="installs packages from an index: run `make test-package`"
)


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([python, *install], check=True)
    return python.parent


def test_torch_is_not_installed_with_the_server(binaries: Path) -> None:
    assert subprocess.run([binaries / "python", "-c", "import torch"], capture_output=True).returncode != 0


def test_the_packages_come_from_the_wheel(binaries: Path) -> None:
    code = "import gem_core, gem_server, gem_worker, gem_cli, gemps.v1; print(gem_core.__file__, gem_cli.__file__)"
    done = subprocess.run([binaries / "python", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert all("site-packages" in path for path in done.stdout.split())


def test_the_server_serves_and_tells_its_status(binaries: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [binaries / "gemps", "serve", "--bind", "127.0.0.1:0", "--ready-file", ready]
    server = subprocess.Popen(command, cwd=tmp_path)
    try:
        deadline = time.monotonic() + PATIENCE
        while not ready.exists():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        address = json.loads(ready.read_text(encoding="utf-8"))["address"]
        status = [binaries / "gemps", "status", address, "--json"]
        done = subprocess.run(status, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert json.loads(done.stdout)["run_state"] == "RUN_STATE_WAITING"
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    finally:
        server.kill()
        server.wait()


def test_a_worker_says_what_to_install(binaries: Path) -> None:
    done = subprocess.run([binaries / "gemps", "work"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == 'gemps: torch is not installed: pip install "gemps[worker]"\n'
