"""Finds misspelt variables."""

import difflib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gem_worker.client.settings import ClientSettings

from gem_cli import gone
from gem_cli.commands.known import KNOWN
from gem_cli.errors import CommandError
from gem_cli.setting_keys import fields, tables, variable

_PREFIX = "GEMPS_"
_OTHERS = ("GEMPS_CONFIG", "GEMPS_WORKER_INDEX")
# Kubernetes sets GEMPS_PORT for services named gemps.
_ALIKE = 0.8


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Map misspelt names to known ones."""
    known = {variable(one, name) for one in (*KNOWN, ClientSettings) for name in fields(one)}
    known |= {*_OTHERS, *gone.variables()}
    # A wrong variable of a table ends the command that reads the table.
    refused = tuple(variable(one, f"{table}.") for one in KNOWN for table in tables(one))
    ends = [name.removeprefix(_PREFIX) for name in sorted(known)]
    found = {}
    for name in sorted({one for one in names if one.startswith(_PREFIX) and not one.startswith(refused)} - known):
        near = difflib.get_close_matches(name.removeprefix(_PREFIX), ends, n=1, cutoff=_ALIKE)
        if near:
            found[name] = _PREFIX + near[0]
    return found


def print_misspelt() -> None:
    """Print them."""
    for line in _lines():
        print(f"gemps: {line}", file=sys.stderr)


@contextmanager
def misspelt_logged() -> Iterator[None]:
    """Log them, once the block configured logs."""
    try:
        yield
    except CommandError:
        print_misspelt()
        raise
    for line in _lines():
        logging.getLogger(__name__).warning(line)


def _lines() -> list[str]:
    return [
        f"{name} is ignored, since there is no such setting: did you mean {meant}?"
        for name, meant in misspelt(os.environ).items()
    ]
