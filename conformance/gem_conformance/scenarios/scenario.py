"""What a scenario is, and the layouts that several of them share."""

from collections.abc import Callable
from dataclasses import dataclass

from gem_conformance.play import Play
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout

__all__ = ["LARGE", "SMALL", "Scenario"]

# A payload of 3 348 bytes: travels whole.
SMALL = Task(Layout([tensor("weight", (64, 13)), tensor("bias", (5,))]))
# 400 kB in float32, six chunks: waits for proceed, in int8 too. 100 001 elements: its last int8 block is a short one.
LARGE = Task(Layout([tensor("weight", (310, 320)), tensor("bias", (801,))]))
# No multiple of an element, so that a cut has to look for a border; more than a payload that travels whole has.
CHUNK_BYTES = 70_001


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        name: as `gemps conformance list` shows it.
        about: what it plays, in a line.
        play: the steps.
        task: what the candidate trains.
        is_basic: part of `--basic`.
        may_not_speak: a candidate may leave it with exit status 3.
    """

    name: str
    about: str
    play: Callable[[Play], None]
    task: Task = SMALL
    is_basic: bool = False
    may_not_speak: bool = False
    chunk_bytes: int = CHUNK_BYTES
