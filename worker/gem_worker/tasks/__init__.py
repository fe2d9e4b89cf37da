"""Tasks of `gemps work`; also named in settings.TaskName."""

import difflib
from collections.abc import Callable
from importlib import import_module

from gem_worker.errors import TaskError
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import (
    Samples,
    Task,
    batch_numbers,
    epoch_order,
    held_out_batches,
    steps_per_epoch,
    training_batches,
)

__all__ = [
    "Samples",
    "Task",
    "TaskOptions",
    "batch_numbers",
    "create_task",
    "epoch_order",
    "held_out_batches",
    "steps_per_epoch",
    "task_names",
    "training_batches",
]

# name -> (module, function), imported on use.
_TASKS = {
    "digits": ("digits", "load_digits"),
    "digits28": ("digits", "load_digits28"),
    "mnist": ("idx_images", "load_mnist"),
    "fashion-mnist": ("idx_images", "load_fashion_mnist"),
    "cifar10": ("cifar10", "load_cifar10"),
    "imagefolder": ("image_folder", "load_image_folder"),
    "generated-images": ("generated_images", "load_generated_images"),
    "text": ("text", "load_text"),
}


def task_names() -> tuple[str, ...]:
    """All names."""
    return tuple(_TASKS)


def create_task(name: str, options: TaskOptions | None = None) -> Task:
    """Load a task's data. Raises TaskError if name, files or packages are missing."""
    if name not in _TASKS:
        near = difflib.get_close_matches(name, _TASKS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_TASKS)}"
        raise TaskError(f"there is no task {name!r}; {hint}")
    module, function = _TASKS[name]
    load: Callable[[TaskOptions], Task] = getattr(import_module(f"{__name__}.{module}"), function)
    return load(options or TaskOptions())
