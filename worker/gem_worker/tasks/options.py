"""What a task can be told; the fields are those of WorkerSettings, where they are explained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gem_worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """See `WorkerSettings` for units and consequences; the defaults are the same."""

    dataset_dir: Path = Path("data")
    download: bool = False
    image_size: int = 224
    generated_samples: int = 256
    generated_classes: int = 1000
    loader_threads: int = 2

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """The part of a worker's settings that concerns its task."""
        return cls(
            settings.dataset_dir,
            settings.download,
            settings.image_size,
            settings.generated_samples,
            settings.generated_classes,
            settings.loader_threads,
        )
