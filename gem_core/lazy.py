"""Lazy imports for packages (PEP 562)."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from gem_core.extras import PACKAGES, explain_missing


def lazy(
    package: str, *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__`, `__all__` of names imported under `if TYPE_CHECKING`.

    If a package of `extra` is missing, the error names the fix.
    """
    own = vars(sys.modules[package])
    homes = _type_checking_imports(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            # A missing submodule is an installed package's error.
            if extra is None or error.name not in PACKAGES[extra]:
                raise
            raise ModuleNotFoundError(explain_missing(error.name, extra, name), name=error.name) from None
        own[name] = value
        return value

    return load, lambda: sorted({*own, *homes}), sorted(homes)


def _type_checking_imports(source: str) -> dict[str, str]:
    return {
        alias.asname or alias.name: str(node.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
