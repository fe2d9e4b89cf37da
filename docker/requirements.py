"""Prints what gemps needs, a line each: its dependencies, and those of the extras named as arguments.

The images install dependencies in a layer of their own, before gemps, so that a change of the code rebuilds a small
layer only; pip itself cannot install a project's dependencies without the project.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(extra: str) -> Iterator[str]:
    """What an extra needs; an extra may be made of others, as in "gemps[digits,plot]"."""
    for line in project["optional-dependencies"][extra]:
        if others := re.fullmatch(rf"{project['name']}\[(.+)\]", line):
            for other in others[1].split(","):
                yield from requirements(other.strip())
        else:
            yield line


print(*project["dependencies"], *(line for name in sys.argv[1:] for line in requirements(name)), sep="\n")
