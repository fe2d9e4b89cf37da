"""Environment variables that were meant for gemps, and are misspelt."""

import difflib
from collections.abc import Iterable

from gem_worker.client.settings import ClientSettings

from gem_cli.commands.known import KNOWN
from gem_cli.options import variable

_PREFIX = "GEMPS_"
# Read by `--config`, and by scripts that `gemps train` starts.
_OTHERS = ("GEMPS_CONFIG", "GEMPS_WORKER_INDEX")
# difflib's ratio. Others' variables begin like ours, too: Kubernetes makes GEMPS_PORT for a service named gemps.
_ALIKE = 0.8


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Return, of these names of variables, those that nothing reads but that resemble one, each with that one."""
    known = {variable(one, name) for one in (*KNOWN, ClientSettings) for name in one.model_fields}.union(_OTHERS)
    ends = [name.removeprefix(_PREFIX) for name in sorted(known)]
    found = {}
    for name in sorted({one for one in names if one.startswith(_PREFIX)} - known):
        near = difflib.get_close_matches(name.removeprefix(_PREFIX), ends, n=1, cutoff=_ALIKE)
        if near:
            found[name] = _PREFIX + near[0]
    return found
