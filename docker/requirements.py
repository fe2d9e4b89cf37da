"""Prints what gemps needs, a line each: its dependencies, and those of the extras named as arguments.

    python docker/requirements.py worker --without torch torchvision

The images install dependencies in a layer of their own, before gemps, so that a change of the code rebuilds a small
layer only; pip itself cannot install a project's dependencies without the project.
"""

import argparse
import re
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


parser = argparse.ArgumentParser()
parser.add_argument("extras", nargs="*")
parser.add_argument("--without", nargs="+", default=[], help="distributions to leave out")
given = parser.parse_args()
lines = dict.fromkeys([*project["dependencies"], *(line for name in given.extras for line in requirements(name))])
print(*(line for line in lines if re.match(r"[\w.-]+", line)[0] not in given.without), sep="\n")
