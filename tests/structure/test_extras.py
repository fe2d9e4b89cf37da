"""The extras of pyproject.toml, the messages about them, and what the packages import."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from gem_cli import extras
from gem_cli.errors import CommandError

from gem_core.extras import PACKAGES, distribution
from tests.structure.source_files import FRAMING, ROOT, imports, sources
from tests.structure.source_files import PACKAGES as FOLDERS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Distributions that no message names: gemps works without them.
OPTIONAL = {"tbb", "uvloop"}
# Libraries whose users have them: gemps.integrations has a module for each.
INTEGRATED = {"accelerate", "lightning", "transformers"}
# Those of base whose import name is their own.
IMPORTED_OF_BASE = {"awscrt", "numpy", "psutil", "pydantic", "pydantic-settings", "rich", "typer", "typing-extensions"}


def names(lines: list[str]) -> Iterator[str]:
    """Distributions of these requirements, those of gemps' own extras included."""
    for line in lines:
        if own := re.fullmatch(r"gemps\[(.+)\]", line):
            for extra in own[1].split(","):
                yield from names(PROJECT["optional-dependencies"][extra])
        else:
            yield re.match(r"[\w-]+", line)[0]  # type: ignore[index]


EXTRAS = {extra: set(names(lines)) for extra, lines in PROJECT["optional-dependencies"].items()}
# A cluster has one of them.
ENGINES = {"ray", "spark"}
BASE = set(names(PROJECT["dependencies"]))


@pytest.mark.parametrize("extra", PACKAGES)
def test_messages_know_the_packages_of_an_extra(extra: str) -> None:
    assert {distribution(package) for package in PACKAGES[extra]} == EXTRAS[extra] - OPTIONAL


def test_all_is_all_but_the_engines() -> None:
    assert EXTRAS["all"] == set().union(*(found for extra, found in EXTRAS.items() if extra not in ENGINES))


def test_a_worker_gets_nothing_of_the_servers() -> None:
    assert EXTRAS["worker"].isdisjoint({"aiohttp", "numba", "tbb", "prometheus-client"})


def test_every_package_that_is_imported_is_in_base_or_in_an_extra() -> None:
    ours = {folder.name for folder in (*FOLDERS, FRAMING)}
    modules = {module for folder in (*FOLDERS, FRAMING) for path in sources(folder) for _, module in imports(path)}
    foreign = {module.partition(".")[0] for module in modules} - ours - set(sys.stdlib_module_names) - {"_typeshed"}
    in_extras = {package for packages in PACKAGES.values() for package in packages}
    come_along = {"google", "grpc", "pydantic_core", "PIL"}  # the last one with torchvision
    come_along |= {"IPython", "pandas"}  # used where they are
    found = foreign - in_extras - OPTIONAL - INTEGRATED - {"py4j"}  # with pyspark
    assert found == come_along | {one.replace("-", "_") for one in IMPORTED_OF_BASE}
    assert {"googleapis-common-protos", "grpcio", "protobuf"} == BASE - IMPORTED_OF_BASE


def package(folder: Path, name: str, home: str) -> str:
    """Write a package whose public name `thing` is in a module with this text; return its name."""
    (folder / name).mkdir()
    (folder / name / "home.py").write_text(home, encoding="utf-8")
    (folder / name / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nfrom gem_core.lazy import lazy\n"
        f"if TYPE_CHECKING:\n    from {name}.home import thing as thing\n"
        '__getattr__, __dir__, __all__ = lazy(__name__, extra="worker")\n',
        encoding="utf-8",
    )
    return name


@pytest.mark.parametrize(
    ("name", "home", "said"),
    [
        ("lazy_without_torch", "import torch", 'thing needs torch, which is not installed: pip install ".[worker]"'),
        ("lazy_with_a_broken_torch", "raise ModuleNotFoundError('torch lacks nn', name='torch.nn')", "torch lacks nn"),
        ("lazy_without_another", "import no_such_package", "No module named 'no_such_package'"),
    ],
)
def test_only_a_missing_package_of_the_extra_is_explained(
    name: str, home: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    module = import_module(package(tmp_path, name, home))
    with pytest.raises(ModuleNotFoundError, match=re.escape(said)) as missing:
        _ = module.thing
    assert missing.value.__cause__ is None  # one traceback
    assert "thing" in dir(module)


@pytest.mark.parametrize(
    "name", ["gem_core", "gem_worker", "gem_worker.client", "gem_simulator", "gem_launch", "gemps"]
)
def test_every_lazy_name_is_where_its_package_says(name: str) -> None:
    module = import_module(name)
    assert len(module.__all__) >= 3
    assert all(getattr(module, one) is not None for one in module.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_gemps_has_the_version_of_the_distribution() -> None:
    assert import_module("gemps").__version__ == PROJECT["version"]


def test_a_command_names_the_first_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require("server", "serve")
    monkeypatch.setitem(sys.modules, "grpc_health", None)
    with pytest.raises(CommandError) as caught:
        extras.require("server", "serve")
    fix = 'pip install ".[server]" in a checkout of gemps'
    assert str(caught.value) == f"serve needs grpcio-health-checking, which is not installed: {fix}"
    extras.require("server", "serve", "numba")
