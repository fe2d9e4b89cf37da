"""Scenario type and shared layouts."""

from collections.abc import Callable
from dataclasses import dataclass

from gem_conformance.play import Play
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout

__all__ = ["LARGE", "SMALL", "Scenario"]

# 3 348 bytes: travels whole.
SMALL = Task(Layout([tensor("weight", (64, 13)), tensor("bias", (5,))]))
# Waits for proceed, in bfloat16 too; ends in a short block.
LARGE = Task(Layout([tensor("weight", (310, 320)), tensor("bias", (801,))]))
# Not a multiple of an element; above the whole-payload limit.
CHUNK_BYTES = 70_001


@dataclass(frozen=True, slots=True)
class Scenario:
    """Named steps; `is_basic`: part of `--basic`, `may_not_speak`: exit status 3 is allowed.

    `shards`: servers, which all take the steps.
    """

    name: str
    about: str
    play: Callable[[Play], None]
    task: Task = SMALL
    is_basic: bool = False
    may_not_speak: bool = False
    chunk_bytes: int = CHUNK_BYTES
    shards: int = 1
