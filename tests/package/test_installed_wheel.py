"""The wheel in virtual environments of its own, outside the checkout: without extras, and as a server.

`python -m pytest -m package` runs it.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.figures import Figures
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
# 110 measured, of which NumPy's wheel takes 57, gRPC's 18, awscrt's 12 and pydantic's 8.
LARGEST_BASE_MIB = 115
NOT_IN_BASE = ("aiohttp", "cloudpickle", "matplotlib", "numba", "safetensors", "sklearn", "structlog", "tbb", "torch")

# A worker without PyTorch.
NUMPY_WORKER = """
import sys
import numpy as np
from gem_core import ElementType, Layout, TensorKind, TensorSpec
from gem_worker import Client, RunFinishedError

layout = Layout([TensorSpec("w", (100_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
parameters = np.ones(100_000, np.float32)
delta = np.full(100_000, -0.001, np.float32)
steps = 0
with Client(sys.argv[1], worker_name="numpy", layout=layout) as client:
    client.join()
    client.initialize(memoryview(parameters).cast("B"))
    try:
        client.pull(memoryview(parameters).cast("B"))
        while True:
            client.commit(memoryview(delta).cast("B"), memoryview(parameters).cast("B"), loss=1.0)
            steps += 1
    except RunFinishedError:
        pass
print(steps, parameters.max() < 1)
"""

pytestmark = pytest.mark.package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def kibibytes(folder: Path) -> int:
    return int(subprocess.run(["du", "-sk", str(folder)], check=True, capture_output=True, text=True).stdout.split()[0])


class Environment:
    """A new virtual environment with `what` in it.

    Attributes:
        packages: its site-packages.
        mebibytes: what they take without compiled files, and without what was there before: pip and setuptools.
    """

    def __init__(self, folder: Path, what: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.binaries = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        before = kibibytes(self.packages)
        pip = ["-m", "pip", "install", "--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([self.binaries / "python", *pip, what], check=True)
        self.mebibytes = (kibibytes(self.packages) - before) / 1024

    def compile(self) -> float:
        """Compile all files; return what that takes, in MiB."""
        before = kibibytes(self.packages)
        subprocess.run([self.binaries / "python", "-m", "compileall", "-qq", str(self.packages)], capture_output=True)
        return (kibibytes(self.packages) - before) / 1024

    def python(self, code: str, *arguments: str) -> str:
        """Run Python code to its end; return what it printed."""
        done = subprocess.run(
            [self.binaries / "python", "-c", code, *arguments], capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def gemps(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([self.binaries / "gemps", *arguments], capture_output=True, text=True, cwd="/")


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("base"), str(wheel))


@pytest.fixture(scope="module")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("server"), f"{wheel}[server]")


@contextmanager
def serving(server: Environment, folder: Path, *options: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    ready = folder / "ready.json"
    command = [server.binaries / "gemps", "serve", "--bind", "127.0.0.1:0", "--ready-file", ready, *options]
    process = subprocess.Popen(command, cwd=folder)
    try:
        eventually(lambda: ready.exists() or process.poll() is not None, patience=PATIENCE)
        assert ready.exists()
        yield json.loads(ready.read_text(encoding="utf-8"))["address"], process
    finally:
        process.kill()
        process.wait()


def test_base_is_small(base: Environment, figures: Figures) -> None:
    measured = base.mebibytes
    figures("pip install .", f"{measured:.0f} MiB, compiled {measured + base.compile():.0f} MiB")
    assert measured <= LARGEST_BASE_MIB


def test_base_has_neither_the_servers_nor_the_workers_packages(base: Environment) -> None:
    code = f"from importlib.util import find_spec; print([one for one in {NOT_IN_BASE} if find_spec(one)])"
    assert base.python(code) == "[]"


def test_the_packages_come_from_the_wheel(base: Environment) -> None:
    code = "import gem_core, gem_server, gem_worker, gem_cli, gemps.v1; print(gem_core.__file__, gem_cli.__file__)"
    assert all(str(base.packages) in path for path in base.python(code).split())


def test_gemps_is_importable_and_has_its_version(base: Environment) -> None:
    version = base.python("import gemps; print(gemps.__version__)")
    assert base.gemps("--version").stdout == f"gemps {version}\n"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("gemps.ParameterServer", 'ParameterServer needs torch, which is not installed: pip install ".[worker]"'),
        ("gemps.launch", 'launch needs cloudpickle, which is not installed: pip install ".[worker]"'),
        ("gemps.load", 'load needs safetensors, which is not installed: pip install ".[worker]"'),
        ("gemps.simulate", 'simulate needs torch, which is not installed: pip install ".[lab]"'),
        ("gem_worker.work", 'work needs torch, which is not installed: pip install ".[worker]"'),
        ("gem_core.create_rule", 'create_rule needs numba, which is not installed: pip install ".[server]"'),
    ],
)
def test_a_name_whose_extra_is_missing_says_what_to_install(base: Environment, statement: str, said: str) -> None:
    package, _, name = statement.partition(".")
    code = f"import {package}\ntry:\n    {package}.{name}\nexcept ModuleNotFoundError as error:\n    print(error)"
    assert base.python(code) == f"{said} in a checkout of gemps"


@pytest.mark.parametrize(
    ("command", "needs", "extra"),
    [
        ("serve", "aiohttp", "server"),
        ("replay FILE", "numba", "server"),
        ("work", "torch", "worker"),
        ("evaluate FILE", "torch", "worker"),
        ("train", "numba", "train"),
        ("simulate --steps 1", "torch", "lab"),
        ("reproduce all", "torch", "lab"),
        ("certs", "cryptography", "certs"),
    ],
)
def test_a_command_whose_extra_is_missing_says_what_to_install(
    base: Environment, command: str, needs: str, extra: str
) -> None:
    done = base.gemps(*command.split())
    fix = f'pip install ".[{extra}]" in a checkout of gemps'
    assert done.returncode == 1
    assert done.stderr == f"gemps: {command.split()[0]} needs {needs}, which is not installed: {fix}\n"


def test_base_has_the_command(base: Environment) -> None:
    assert "Run the parameter server" in base.gemps("--help").stdout
    assert "parameter-int4-block" in base.gemps("conformance", "list").stdout
    done = base.gemps("status", "127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("gemps: no answer from a gemps server at 127.0.0.1:9 ")
    doctor = base.gemps("doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert 'pip install ".[server]"' in doctor.stdout


def test_the_server_has_no_pytorch_serves_and_tells_its_status(
    server: Environment, base: Environment, tmp_path: Path, figures: Figures
) -> None:
    figures('pip install ".[server]"', f"{server.mebibytes:.0f} MiB")
    assert server.python("from importlib.util import find_spec; print(find_spec('torch'))") == "None"
    with serving(server, tmp_path, "--dashboard", "127.0.0.1:0") as (address, process):
        status = base.gemps("status", address, "--json")
        assert json.loads(status.stdout)["run_state"] == "RUN_STATE_WAITING", status.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_the_client_library_of_base_trains_on_a_server(server: Environment, base: Environment, tmp_path: Path) -> None:
    with serving(server, tmp_path, "--steps", "20") as (address, _):
        assert base.python(NUMPY_WORKER, address) == "20 True"
