"""The example workers, and the data that they train on."""

from pathlib import Path

import pytest

from tests.examples import building
from tests.examples.workers import export_digits


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `gemps export-task digits` writes."""
    return export_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def cpp_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the C++ worker is built in."""
    return building.cpp_build(tmp_path_factory)


@pytest.fixture(scope="session")
def cpp_worker(cpp_build: Path) -> list[str]:
    """The C++ worker's command."""
    return [str(cpp_build / "gemps-worker")]


@pytest.fixture(scope="session")
def go_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go worker's folder, where it is built."""
    return building.go_build(tmp_path_factory)


@pytest.fixture(scope="session")
def go_worker(go_folder: Path) -> list[str]:
    """The Go worker's command."""
    return [str(go_folder / "build" / "gemps-worker")]


@pytest.fixture(scope="session")
def cpp_candidate(cpp_build: Path) -> list[str]:
    """The C++ worker's command for the conformance kit."""
    return [str(cpp_build / "conformance")]


@pytest.fixture(scope="session")
def typescript_dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the TypeScript worker is built in."""
    return building.typescript_checkout(tmp_path_factory) / building.TYPESCRIPT / "dist"


@pytest.fixture(scope="session")
def typescript_worker(typescript_dist: Path) -> list[str]:
    """The TypeScript worker's command."""
    return ["node", str(typescript_dist / "src" / "main.js")]


@pytest.fixture(scope="session")
def typescript_candidate(typescript_dist: Path) -> list[str]:
    """The TypeScript worker's command for the conformance kit."""
    return ["node", str(typescript_dist / "test" / "conformance.js")]
