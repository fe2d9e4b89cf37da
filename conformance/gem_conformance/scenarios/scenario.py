"""The type of a scenario, and the tasks and steps that several scenarios share."""

from dataclasses import dataclass

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.steps import Step
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout

__all__ = ["BEGIN", "END", "LARGE", "SMALL", "Scenario"]

# A payload has 3 348 bytes, few enough to come in one message with its header.
SMALL = Task(Layout([tensor("weight", (64, 13)), tensor("bias", (5,))]))
# A payload must wait for proceed, even in bfloat16. The last block of INT4_BLOCK is not full.
LARGE = Task(Layout([tensor("weight", (310, 320)), tensor("bias", (801,))]))
# More than a payload that comes in one message may have, and no multiple of an element's bytes.
CHUNK_BYTES = 70_001


@dataclass(frozen=True, slots=True)
class Scenario:
    """A sequence of steps that a candidate must pass.

    Attributes:
        name: its name in lists, options and results.
        about: the situation and what the worker must do, in one line.
        steps: what the server does and what the worker must do, in order. If there are several servers, each takes all.
        task: what the worker trains.
        is_basic: whether even the simplest worker must pass it (`--basic`).
        is_optional: whether a worker may exit with status 3, to say that it does not support this.
        chunk_bytes: the size of the chunks that the server sends.
        shards: the number of servers.
        needs: features without which the run refuses a worker.
        uses: features that it is about. If a worker does not announce them, the scenario is not supported.
        needs_process: whether it signals or kills the process, so that it cannot be played by hand.
        name_suffix: what is appended to the worker's name.
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
        """The value of GEMPS_WORKER_NAME, with which the candidate must join."""
        return f"candidate-{self.name}{self.name_suffix}"


# The steps with which most scenarios begin and end.
BEGIN = (do.others_trained(), do.commit())
END = (do.commit(), do.last_commit())
