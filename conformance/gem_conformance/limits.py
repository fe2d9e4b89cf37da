"""Time limits, which keep a candidate that hangs from stopping the kit."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds, generous for busy machines.

    Attributes:
        start: from the process's start to its first Join.
        answer: until the next call or message.
        footer: from a payload's last byte to its footer.
        exit: from Leave to the end of the process.
    """

    start: float = 90.0
    answer: float = 40.0
    footer: float = 10.0
    exit: float = 30.0
