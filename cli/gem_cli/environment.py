"""Finds misspelt variables."""

import difflib
from collections.abc import Iterable

from gem_worker.client.settings import ClientSettings

from gem_cli.commands.known import KNOWN
from gem_cli.options import variable

_PREFIX = "GEMPS_"
_OTHERS = ("GEMPS_CONFIG", "GEMPS_WORKER_INDEX")
# Kubernetes sets GEMPS_PORT for services named gemps.
_ALIKE = 0.8


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Map misspelt names to known ones."""
    known = {variable(one, name) for one in (*KNOWN, ClientSettings) for name in one.model_fields}.union(_OTHERS)
    ends = [name.removeprefix(_PREFIX) for name in sorted(known)]
    found = {}
    for name in sorted({one for one in names if one.startswith(_PREFIX)} - known):
        near = difflib.get_close_matches(name.removeprefix(_PREFIX), ends, n=1, cutoff=_ALIKE)
        if near:
            found[name] = _PREFIX + near[0]
    return found
