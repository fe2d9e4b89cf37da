"""The example workers, and the data that they train on."""

from pathlib import Path

import pytest

from tests.examples.building import CPP, TYPESCRIPT, cpp_checkout, typescript_checkout
from tests.examples.workers import export_digits


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `gemps export-task digits` writes."""
    return export_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def cpp_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ worker's folder, built."""
    return cpp_checkout(tmp_path_factory) / CPP


@pytest.fixture(scope="session")
def cpp_worker(cpp_folder: Path) -> list[str]:
    """The C++ worker's command."""
    return [str(cpp_folder / "build/gemps-worker")]


@pytest.fixture(scope="session")
def typescript_worker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The TypeScript worker's command."""
    return ["node", str(typescript_checkout(tmp_path_factory) / TYPESCRIPT / "dist/src/main.js")]
