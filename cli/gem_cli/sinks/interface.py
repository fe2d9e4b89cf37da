"""Interface of metric sinks.

Registered by entry points:

    [project.entry-points."gemps.sinks"]
    my-sink = "my_package.my_sink:MySink"
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# By group/name, as "run/loss".
Scalars = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run; sinks may write to `folder`."""

    name: str
    folder: Path
    settings: Mapping[str, Any]


class Sink(ABC):
    """Receives figures. Single-threaded; closed once.

    Exceptions disable it. Missing packages raise ImportError.
    """

    @abstractmethod
    def __init__(self, run: RunInfo) -> None:
        """Start."""

    @abstractmethod
    def write(self, clock: int, seconds: float, scalars: Scalars) -> None:
        """Record figures of version `clock`; clocks ascend, except for evaluations."""

    @abstractmethod
    def close(self, summary: Mapping[str, Any]) -> None:
        """End; `summary` is summary.json."""
