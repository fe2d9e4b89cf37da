"""The one place that imports torchvision, and the error for when that fails.

torchvision holds compiled code for exactly one version of torch. With another one its import fails in ways that say
nothing ("operator torchvision::nms does not exist"), so every failure becomes one message that names both versions.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gem_worker.errors import TaskError


def import_torchvision(submodule: str, wanted_for: str) -> Any:
    """`torchvision.<submodule>`. Raises TaskError where torchvision is missing, or does not fit the installed torch."""
    try:
        found = version("torchvision")
    except PackageNotFoundError as error:
        raise TaskError(f'{wanted_for} needs torchvision: pip install "gemps[worker]"') from error
    try:
        return import_module(f"torchvision.{submodule}")
    except Exception as error:  # a mismatched pair raises ImportError, RuntimeError, AttributeError, OSError
        raise TaskError(
            f"torchvision {found} does not work with torch {version('torch')} ({type(error).__name__}: {error}); "
            "install the pair that belongs together, from one index: pip install --force-reinstall torch torchvision"
        ) from error
