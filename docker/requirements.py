"""Prints what gemps needs, a line each: its dependencies, and those of the extras named as arguments.

The images install dependencies in a layer of their own, before gemps, so that a change of the code rebuilds a small
layer only; pip itself cannot install a project's dependencies without the project.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name]), sep="\n")
