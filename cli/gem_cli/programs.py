"""Commands of the user's own that gemps starts: workers in any language."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gem_cli.errors import USAGE, CommandError


def resolved(command: Sequence[str], hint: str) -> list[str]:
    """Return the command with python as the Python that runs gemps; a Python file may stand for itself.

    Raises CommandError when there is no such program, with `hint`, or when it may not be executed.
    """
    program, *arguments = command
    if program in ("python", "python3"):
        return [sys.executable, *arguments]
    if program.endswith(".py") and Path(program).exists():
        return [sys.executable, program, *arguments]
    if shutil.which(program) is None:
        if Path(program).is_file():
            raise CommandError(f"{program!r} may not be executed: chmod +x {program}", USAGE)
        raise CommandError(f"{program!r} is no program that could be started as a worker; {hint}", USAGE)
    return list(command)
