"""Options of a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gem_worker.model_sizes import DEFAULT_SIZES, TransformerSizes
from gem_worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options from `WorkerSettings`, with the same defaults."""

    dataset_dir: Path = Path("data")
    download: bool = False
    image_size: int = 224
    generated_samples: int = 256
    generated_classes: int = 1000
    loader_threads: int = 2
    text: str = ""
    context: int = 64
    sizes: TransformerSizes = DEFAULT_SIZES

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        """Convert worker settings."""
        return cls(
            settings.dataset_dir,
            settings.download,
            settings.image_size,
            settings.generated_samples,
            settings.generated_classes,
            settings.loader_threads,
            settings.text,
            settings.context,
            settings.transformer_sizes,
        )
