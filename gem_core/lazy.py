"""Lazy imports for packages (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `package`; `homes`: public name -> submodule."""
    own = vars(sys.modules[package])

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{homes[name]}"), name)
        own[name] = value
        return value

    return load, lambda: sorted({*own, *homes})
