"""What happens to the connection, for a person to read: one event when a thing changes, none while it lasts."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_log = logging.getLogger("gem_worker.client")


class EventKind(Enum):
    """What happened. The values are for programs that read a worker's log."""

    # No server there yet, or it cannot take this worker yet; or it is still away, now for another reason.
    WAITING_FOR_SERVER = "waiting-for-server"
    CONNECTION_LOST = "connection-lost"
    CONNECTION_BACK = "connection-back"
    # It answers, and asks to come back later.
    SERVER_BUSY = "server-busy"
    # It was restarted, or had lost the session.
    JOINED_AGAIN = "joined-again"
    DELTA_DROPPED = "delta-dropped"
    # The server offers shared memory, but this worker cannot have it, or has it no more: it uses the stream.
    NOT_SHARED = "not-shared"
    # The server did not hear that this worker left.
    NOT_LEFT = "not-left"


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """One event: its kind, and one line of text."""

    kind: EventKind
    message: str


EventSink = Callable[[ClientEvent], None]


def log_event(event: ClientEvent) -> None:
    """Default sink: the logger gem_worker.client, at INFO for good news and WARNING for the rest."""
    good = event.kind in (EventKind.CONNECTION_BACK, EventKind.WAITING_FOR_SERVER)
    _log.log(logging.INFO if good else logging.WARNING, "%s", event.message)
