"""One name, one meaning: classes, functions and errors of the product."""

import ast
import builtins
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAIN_ROOMS = ("gem_core", "server", "worker", "proto/gemps")
ROOMS = (*MAIN_ROOMS, "gem_trace", "cli", "launch", "conformance", "simulator", "reproduction")
# They have the name of the message that they hold.
MIRRORS_OF_THE_WIRE = {"RunState", "Verdict", "Version"}
# One for each library.
INTEGRATIONS = {"GempsCallback"}
MOST_DEFINITIONS = 6
# contextlib.closing, and what every resource has.
STANDARD = {"close"}


@dataclass(frozen=True)
class Class:
    name: str
    place: str
    bases: tuple[str, ...]
    methods: frozenset[str]


@dataclass(frozen=True)
class Function:
    name: str
    place: str
    owner: Class | None


@cache
def trees(rooms: tuple[str, ...]) -> list[tuple[str, ast.Module]]:
    files = (file for room in rooms for file in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in file.name)
    return [(str(file.relative_to(ROOT)), ast.parse(file.read_text("utf-8"))) for file in files]


def base_name(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]


@cache
def definitions(rooms: tuple[str, ...]) -> tuple[list[Class], list[Function]]:
    """Classes, and functions outside of functions."""
    classes: list[Class] = []
    functions: list[Function] = []

    def visit(nodes: list[ast.stmt], file: str, owner: Class | None) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                methods = frozenset(
                    one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                )
                found = Class(node.name, f"{file}:{node.lineno}", tuple(map(base_name, node.bases)), methods)
                classes.append(found)
                visit(node.body, file, found)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(Function(node.name, f"{file}:{node.lineno}", owner))
            elif isinstance(node, ast.If | ast.Try):
                visit(node.body, file, owner)

    for file, tree in trees(rooms):
        visit(tree.body, file, None)
    return classes, functions


def interface_of(owner: Class, method: str, classes: dict[str, Class]) -> str:
    """The class that declares `method`: a base of `owner`, or a protocol that `owner` implements; else `owner`."""
    for base in owner.bases:
        if base in classes and base != owner.name:
            declared = interface_of(classes[base], method, classes)
            if method in classes[base].methods or declared != base:
                return declared
        elif method in getattr(getattr(builtins, base, None), "__dict__", {}):
            return base
    for protocol in classes.values():
        public = {name for name in protocol.methods if not name.startswith("_")}
        if "Protocol" in protocol.bases and method in public and public <= owner.methods:
            return protocol.name
    return owner.name


def unrelated(functions: list[Function], classes: dict[str, Class]) -> dict[str, set[str]]:
    """By name: a place for each definition that no interface explains."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for one in functions:
        family = interface_of(one.owner, one.name, classes) if one.owner is not None else one.place
        found[one.name].setdefault(family, one.place)
    return {name: set(families.values()) for name, families in found.items()}


def test_function_names_are_not_overloaded() -> None:
    classes, functions = definitions(ROOMS)
    overloaded = {
        name: sorted(places)
        for name, places in unrelated(functions, {one.name: one for one in classes}).items()
        if len(places) > MOST_DEFINITIONS and name not in STANDARD and not name.startswith("__")
    }
    assert not overloaded


def test_class_names_are_unique_in_the_main_rooms() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for one in definitions(MAIN_ROOMS)[0]:
        places[one.name].append(one.place)
    shared = MIRRORS_OF_THE_WIRE | INTEGRATIONS
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in shared}
    assert not twice


def test_exceptions_end_in_error() -> None:
    classes = {one.name: one for one in definitions(ROOMS)[0]}

    def is_exception(name: str) -> bool:
        if name in classes:
            return any(map(is_exception, classes[name].bases))
        known = getattr(builtins, name, None)
        return name in ("RpcError", "AbortError") or (isinstance(known, type) and issubclass(known, BaseException))

    wrong = [one.place for one in classes.values() if is_exception(one.name) and not one.name.endswith("Error")]
    assert not wrong


@pytest.mark.parametrize("verb", ["take", "look", "tell", "note"])
def test_vague_verbs_are_not_used(verb: str) -> None:
    _, functions = definitions(ROOMS)
    assert not [one.place for one in functions if verb in one.name.split("_")]


def test_files_and_classes_are_not_gerunds() -> None:
    nouns = {"settings", "framing", "lightning", "Setting"}
    files = [file for file, _ in trees(ROOMS) if Path(file).stem not in nouns]
    gerunds = [file for file in files if Path(file).stem.rpartition("_")[2].endswith("ing") and "settings" not in file]
    classes = [one.place for one in definitions(ROOMS)[0] if one.name.endswith("ing") and one.name != "Setting"]
    assert not gerunds + classes
