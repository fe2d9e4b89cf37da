"""How long the kit waits for what, in seconds. A candidate is never judged by its speed, only given up on."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Generous, so that an interpreter on a busy machine survives them.

    Attributes:
        start: until the first Join of a candidate that was just started; compilers and interpreters take their time.
        answer: until the next call or message. A right worker computes for a moment and retries within 10 s of when it
            may; shorter finds a hanging one sooner.
        footer: until the footer when all chunks of a payload are there.
        quiet: for which the kit watches whether something comes too early. Longer sees slower offenders, and delays
            every scenario that does this.
        exit: until the process has ended after its Leave.
    """

    start: float = 90.0
    answer: float = 40.0
    footer: float = 10.0
    quiet: float = 1.0
    exit: float = 30.0
