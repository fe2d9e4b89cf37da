"""User-supplied commands."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gem_cli.errors import USAGE, CommandError


def resolved(command: Sequence[str], hint: str) -> list[str]:
    """Substitute this interpreter for python.

    Raises CommandError when not found (with `hint`) or not executable.
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
