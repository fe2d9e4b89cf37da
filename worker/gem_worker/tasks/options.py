"""Options of a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gem_worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The task's part of `WorkerSettings`, with the same defaults."""

    dataset_dir: Path = Path("data")
    download: bool = False
    image_size: int = 224
    generated_samples: int = 256
    generated_classes: int = 1000
    loader_threads: int = 2

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        """Extract the options from worker settings."""
        return cls(
            settings.dataset_dir,
            settings.download,
            settings.image_size,
            settings.generated_samples,
            settings.generated_classes,
            settings.loader_threads,
        )
