"""Events at the server."""

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """FETCHED: paper's exchange only."""

    JOINED = "joined"
    PULLED = "pulled"
    FETCHED = "fetched"
    COMMITTED = "committed"
    LEFT = "left"


class Event(NamedTuple):
    """`at`: when it took effect; `waited`: seconds queued."""

    at: float
    kind: Kind
    rank: int
    waited: float = 0.0
