"""Connection events, one per change."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_log = logging.getLogger("gem_worker.client")


class EventKind(Enum):
    """Programs may parse the values from logs."""

    # Server absent, or not accepting this worker.
    WAITING_FOR_SERVER = "waiting-for-server"
    CONNECTION_LOST = "connection-lost"
    CONNECTION_BACK = "connection-back"
    SERVER_BUSY = "server-busy"
    # After a restart or lost session.
    JOINED_AGAIN = "joined-again"
    DELTA_DROPPED = "delta-dropped"
    # Offered shared memory is unusable.
    NOT_SHARED = "not-shared"
    # Measured exchanges decided about the wire types.
    WIRE_TYPES = "wire-types"
    # The server missed Leave.
    NOT_LEFT = "not-left"


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event with one line of text."""

    kind: EventKind
    message: str


EventSink = Callable[[ClientEvent], None]


def log_event(event: ClientEvent) -> None:
    """Log to gem_worker.client; the default sink."""
    good = event.kind is EventKind.CONNECTION_BACK
    _log.log(logging.INFO if good else logging.WARNING, "%s", event.message)
