"""Versions of the parameters, and where shared memory holds one."""

from dataclasses import dataclass
from typing import NamedTuple


class Version(NamedTuple):
    """(incarnation, clock). Clocks of different incarnations are not comparable; clock 0: no parameters."""

    incarnation: int
    clock: int


@dataclass(frozen=True, slots=True)
class Handle:
    """A payload in shared memory."""

    region: int
    offset: int
    byte_count: int
