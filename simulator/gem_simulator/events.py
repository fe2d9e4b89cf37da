"""What happens at the server, and when: made by timeline.py, or taken from a recording by recorded.py."""

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What happens at the server. With the paper's exchange a step is a FETCHED and a COMMITTED; else the latter."""

    JOINED = "joined"
    PULLED = "pulled"
    FETCHED = "fetched"
    COMMITTED = "committed"
    LEFT = "left"


class Event(NamedTuple):
    """`at`: when it took effect at the server. `waited`: seconds that the request waited there before."""

    at: float
    kind: Kind
    rank: int
    waited: float = 0.0
