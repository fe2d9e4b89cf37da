"""Time limits, which keep a candidate that hangs from stopping the kit."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the kit waits for a candidate, in seconds. The defaults are generous, for busy machines.

    Attributes:
        start: time from the start of the process to its first Join.
        answer: time until the next call or message.
        footer: time from the last byte of a payload to its footer.
        exit: time from Leave to the end of the process.
    """

    start: float = 90.0
    answer: float = 40.0
    footer: float = 10.0
    exit: float = 30.0
