"""Tests use public names, and wait for conditions instead of times."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# Documented by the standard library and, the package of checkpoint_wrapper, by PyTorch: underscore or not.
DOCUMENTED = {"_asdict", "_checkpoint", "_exit", "_fields", "_replace"}
# `eventually` and its like: the only places that poll.
WAITING = "tests/waiting.py"
# Sleeps for a named time: the pace of a slow worker, of an attack, of an outage.
MOST_NAMED_SLEEPS = 34

IS_PRIVATE = re.compile(r"_[a-zA-Z]\w*")
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "attrgetter", "methodcaller", "patch", "object"}
IN_TEXT = re.compile(r"(?<!self)(?<!cls)(?<!super\(\))(?<=[\w)\]])\.(_[a-z]\w*)")


def is_private(name: str) -> bool:
    return IS_PRIVATE.fullmatch(name) is not None and name not in DOCUMENTED


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_own(node: ast.expr) -> bool:
    """self, cls or super()."""
    if isinstance(node, ast.Call):
        return called(node) == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Call) and called(node) in BY_NAME:
            texts = (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))
            own = bool(node.args) and is_own(node.args[0])
            names = [] if own else [text.rpartition(".")[2] for text in texts]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = IN_TEXT.findall(node.value)  # code for another process
        yield from ((node.lineno, name) for name in names if is_private(name))


def sleeps(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of time.sleep and asyncio.sleep, unless for 0."""
    for node in ast.walk(tree):
        is_sleep = isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")
        if is_sleep and ast.unparse(node.args[0]) != "0":
            yield node


def has_number(call: ast.Call) -> bool:
    return any(isinstance(node, ast.Constant) and node.value for node in ast.walk(call.args[0]))


def imports_sleep(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            yield from (node.lineno for alias in node.names if alias.name == "sleep")


@cache
def sources() -> dict[str, ast.Module]:
    """Each file of the tests but this one, parsed once for all tests."""
    paths = [
        path for path in sorted(TESTS.rglob("*.py")) if "node_modules" not in path.parts and path != Path(__file__)
    ]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def test_tests_use_no_private_names() -> None:
    found = [f"{file}:{line}: {name}" for file, tree in sources().items() for line, name in private_names(tree)]
    assert not found, "use what is public, or make it public and document it:\n" + "\n".join(found)


def test_tests_sleep_for_named_times_only() -> None:
    refused = [
        f"{file}:{line}"
        for file, tree in sources().items()
        for line in [*(call.lineno for call in sleeps(tree) if has_number(call)), *imports_sleep(tree)]
    ]
    assert not refused, f"use `eventually` ({WAITING}), or name the time that sets a pace:\n" + "\n".join(refused)
    named = sum(len(list(sleeps(tree))) for file, tree in sources().items() if file != WAITING)
    assert named <= MOST_NAMED_SLEEPS


@pytest.mark.parametrize(
    "code",
    [
        "client._calls.renew()", "self.client._calls", "from gem_core import _hidden", "import gem_core._hidden",
        "from gem_core._hidden import x", "setattr(port, '_lane', 1)", "monkeypatch.setattr(core, '_SIZE', 1)",
        "patch('gem_core.rules._step')", "run('print(client._calls)')",
    ],
)  # fmt: skip
def test_private_names_are_found(code: str) -> None:
    assert list(private_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "self._calls",
        "super()._calls",
        "pair._replace(a=1)",
        "os._exit(0)",
        "a.__dict__",
        "_own()",
        "setattr(self, '_x', 1)",
    ],
)
def test_own_and_documented_names_are_not(code: str) -> None:
    assert not list(private_names(ast.parse(code)))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("time.sleep(0.1)", [True]), ("await asyncio.sleep(2 * TICK)", [True]), ("asyncio.sleep(0)", []),
        ("time.sleep(draw.uniform(0.1, 1))", [True]), ("time.sleep(max(0.0, left))", [False]),
        ("time.sleep(PACE_SECONDS)", [False]), ("clock.sleep(10)", []),
    ],
)  # fmt: skip
def test_sleeps_are_found(code: str, expected: list[bool]) -> None:
    tree = ast.parse(code, mode="exec") if "await" not in code else ast.parse(f"async def f():\n {code}")
    assert [has_number(call) for call in sleeps(tree)] == expected
