"""The example workers, built from nothing as their READMEs say; once for all test processes of a run."""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.workers import build, copy_of_checkout, missing

TYPESCRIPT = "examples/workers/typescript"
CPP = "examples/workers/cpp"
GO = "examples/workers/go"

# What npm says where there is no registry to fetch packages from.
_NO_REGISTRY = re.compile("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ENETUNREACH|ETIMEDOUT")
# The C++ worker's build folder, where somebody has built it from this checkout already, as .ci/run does.
_CPP_BUILT = os.environ.get("GEMPS_TEST_CPP_BUILD")
# What the README's apt-get line brings, as pkg-config knows it.
_CPP_PACKAGES = ("grpc++", "protobuf", "nlohmann_json")

# Where Debian's packages of Go's sources put them, and what the README's apt-get line brings there.
_GO_SOURCES = Path("/usr/share/gocode/src")
_GO_PACKAGES = ("google.golang.org/grpc", "google.golang.org/protobuf", "github.com/golang/protobuf")


def cpp_build(factory: pytest.TempPathFactory) -> Path:
    """The folder that the C++ worker is built in, out of a copy of what it is made of."""
    if _CPP_BUILT is not None:
        return Path(_CPP_BUILT)
    for tool in ("cmake", "c++", "pkg-config", "protoc", "grpc_cpp_plugin"):
        if shutil.which(tool) is None:
            missing(f"the C++ worker needs {tool}, which is not installed")
    for package in _CPP_PACKAGES:
        if subprocess.run(["pkg-config", "--exists", package]).returncode:
            missing(f"the C++ worker needs the development package of {package}, which is not installed")
    return _once(factory, "cpp", _build_cpp) / CPP / "build"


def go_build(factory: pytest.TempPathFactory) -> Path:
    """The folder of the Go worker, built in its folder `build`, out of a copy of what it is made of."""
    for tool in ("go", "make", "protoc", "protoc-gen-go", "protoc-gen-go-grpc"):
        if shutil.which(tool) is None:
            missing(f"the Go worker needs {tool}, which is not installed")
    for package in _GO_PACKAGES:
        if not (_GO_SOURCES / package).is_dir():
            missing(f"the Go worker needs {_GO_SOURCES / package}, which no package has installed")
    return _once(factory, "go", _build_go) / GO


def typescript_checkout(factory: pytest.TempPathFactory) -> Path:
    """A copy of what the TypeScript worker is made of, built in its folder `dist`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("the TypeScript worker needs Node.js with npm, which is not installed")
    version = build("node", "--version", folder=Path.cwd()).strip()
    if int(version.lstrip("v").partition(".")[0]) < 20:
        missing(f"the TypeScript worker needs Node.js 20, and this is {version}")
    return _once(factory, "typescript", _build_typescript)


def _build_cpp(folder: Path) -> None:
    copy = copy_of_checkout(folder, CPP, "proto") / CPP
    build("cmake", "-S", ".", "-B", "build", folder=copy)
    build("cmake", "--build", "build", "-j2", folder=copy, patience=480)


def _build_go(folder: Path) -> None:
    copy = copy_of_checkout(folder, GO, "proto") / GO
    build("make", folder=copy)


def _build_typescript(folder: Path) -> None:
    copy = copy_of_checkout(folder, TYPESCRIPT, "proto") / TYPESCRIPT
    install = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
    done = subprocess.run(install, cwd=copy, capture_output=True, text=True, timeout=280)
    if done.returncode != 0 and _NO_REGISTRY.search(done.stderr):
        missing("npm reaches no registry to fetch the TypeScript worker's packages from")
    assert done.returncode == 0, done.stderr
    build("npm", "run", "build", folder=copy)


def _once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills: by whichever process of this run comes first, while the others wait."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / f"{name}-worker", shared / f"{name}-worker.done"
    with (shared / f"{name}-worker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
