"""Checks for extras before imports."""

from importlib.util import find_spec

from gem_cli.errors import CommandError
from gem_core.extras import PACKAGES, explain_missing


def require(extra: str, command: str, *packages: str) -> None:
    """Raise CommandError, with the line that installs `extra`, if one of its packages is missing.

    `packages`: those that the command always imports; without them all of the extra. Nothing is imported here: a broken
    package shows its own error.
    """
    for name in packages or PACKAGES[extra]:
        if find_spec(name) is None:
            raise CommandError(explain_missing(name, extra, command))
