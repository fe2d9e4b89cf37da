"""The packages' source files, and what each imports."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE, TRACE, SERVER, WORKER, SIMULATOR, REPRODUCTION, CONFORMANCE, CLI, LAUNCH = (
    ROOT / path
    for path in (
        "gem_core", "gem_trace", "server/gem_server", "worker/gem_worker", "simulator/gem_simulator",
        "reproduction/gem_reproduction", "conformance/gem_conformance", "cli/gem_cli", "launch/gem_launch",
    )
)  # fmt: skip
PACKAGES = (CORE, TRACE, SERVER, WORKER, SIMULATOR, REPRODUCTION, CONFORMANCE, CLI, LAUNCH)
FRAMING = ROOT / "proto/gemps"


@cache
def sources(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*.py") if "_pb2" not in path.name)
    assert found, f"{folder} has no Python files: this test looks in the wrong place"
    return found


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, absolute module name) of every import statement and import_module("literal") call, wherever it stands."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{_absolute(path, node)}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, str(one.value)) for one in node.args[:1] if isinstance(one, ast.Constant))


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.parent
    for _ in range(node.level - 1):
        package = package.parent
    top = next(folder.parent for folder in (*PACKAGES, FRAMING) if path.is_relative_to(folder))
    return ".".join([*package.relative_to(top).parts, *([node.module] if node.module else [])])
