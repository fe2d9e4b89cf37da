"""Checks for extras."""

from importlib.util import find_spec

from gem_worker.client.operating_system import IS_WINDOWS

from gem_cli.errors import CommandError
from gem_core.extras import PACKAGES, explain_missing


def require(extra: str, command: str, *packages: str) -> None:
    """Raise CommandError, with the fix, if a package of `extra` is missing.

    `packages`: those that the command always imports; default: all of the extra. Imports nothing: a broken package
    shows its own error.
    """
    for name in packages or PACKAGES[extra]:
        if find_spec(name) is None:
            raise CommandError(explain_missing(name, extra, command))


def require_server_system(command: str) -> None:
    """Raise CommandError on Windows."""
    if IS_WINDOWS:
        raise CommandError(
            f"gemps {command} starts a server, which does not run on Windows: run gemps serve on Linux or in WSL, and "
            "gemps work here"
        )
