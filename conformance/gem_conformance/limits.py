"""Timeouts against hangs."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; generous, for busy machines.

    Attributes:
        start: until the first Join.
        answer: until the next call or message.
        footer: after the last chunk.
        quiet: time to watch for premature messages.
        exit: after Leave.
    """

    start: float = 90.0
    answer: float = 40.0
    footer: float = 10.0
    quiet: float = 1.0
    exit: float = 30.0
