"""Imports torchvision."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gem_core.extras import explain_missing
from gem_worker.errors import TaskError


def import_torchvision(submodule: str, wanted_for: str) -> Any:
    """`torchvision.<submodule>`. Raises TaskError if missing or incompatible."""
    try:
        found = version("torchvision")
    except PackageNotFoundError as error:
        raise TaskError(explain_missing("torchvision", "worker", wanted_for)) from error
    try:
        return import_module(f"torchvision.{submodule}")
    except Exception as error:  # a mismatched pair raises ImportError, RuntimeError, AttributeError, OSError
        raise TaskError(
            f"torchvision {found} does not work with torch {version('torch')} ({type(error).__name__}: {error}); "
            "install the pair that belongs together, from one index: pip install --force-reinstall torch torchvision"
        ) from error
