"""A scenario, and the layouts that several use."""

from dataclasses import dataclass

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.steps import Step
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout

__all__ = ["BEGIN", "END", "LARGE", "SMALL", "Scenario"]

# 3 348 bytes: travels whole.
SMALL = Task(Layout([tensor("weight", (64, 13)), tensor("bias", (5,))]))
# Waits for proceed, in bfloat16 too; ends in a short block.
LARGE = Task(Layout([tensor("weight", (310, 320)), tensor("bias", (801,))]))
# Above the limit of whole payloads, and cut within elements.
CHUNK_BYTES = 70_001


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps with a name.

    Attributes:
        name: as in lists and results.
        about: what it shows, in a line.
        steps: what the server does, and what the worker must do; each server of `shards` takes them.
        task: what the worker trains.
        is_basic: whether the simplest worker must pass it.
        is_optional: whether a worker may say by exit status 3 that it does not do this.
        chunk_bytes: of the server's chunks.
        shards: number of servers.
        needs: features without which the run refuses a worker.
        uses: features that it is about; without them the scenario is not spoken.
        needs_process: whether steps signal or kill the process.
        name_suffix: of the worker's name.
    """

    name: str
    about: str
    steps: tuple[Step, ...]
    task: Task = SMALL
    is_basic: bool = False
    is_optional: bool = False
    chunk_bytes: int = CHUNK_BYTES
    shards: int = 1
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    needs_process: bool = False
    name_suffix: str = ""

    @property
    def worker_name(self) -> str:
        """The name with which the candidate joins."""
        return f"candidate-{self.name}{self.name_suffix}"


# What most scenarios begin and end with.
BEGIN = (do.trained(), do.commit())
END = (do.commit(), do.last_commit())
