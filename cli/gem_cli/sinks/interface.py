"""What a sink is.

Another package brings one by an entry point of the group `gemps.sinks`, whose name is what `--sinks` says and whose
object is its class:

    [project.entry-points."gemps.sinks"]
    my-sink = "my_package.my_sink:MySink"
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What tells the figures of a moment: by names with a slash between group and figure, as "run/loss".
Scalars = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that is told of.

    Attributes:
        name: of the run folder, unique within its parent.
        folder: the run folder; a sink may make files of its own in it.
        settings: all of train, server and worker, as plain values (JSON).
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]


class Sink(ABC):
    """Takes a run's figures. Made when the run starts, used from one thread, and closed once at its end.

    Whatever one raises is told, and the run goes on without it. The constructor raises ImportError when what the sink
    is for is not installed.
    """

    @abstractmethod
    def __init__(self, run: RunInfo) -> None:
        """Begin."""

    @abstractmethod
    def write(self, clock: int, seconds: float, scalars: Scalars) -> None:
        """Take the figures of version `clock`, after `seconds` of training.

        Clocks ascend, but for those of evaluations, which are of a version that was there a moment before.
        """

    @abstractmethod
    def close(self, summary: Mapping[str, Any]) -> None:
        """End: `summary` is that of the run (summary.json)."""
