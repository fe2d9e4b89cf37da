"""CIFAR-10 through torchvision."""

import torch

from gem_worker.errors import TaskError
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Task, TensorSamples
from gem_worker.tasks.torchvision_import import import_torchvision

# Of the training set.
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2470, 0.2435, 0.2616)


def load_cifar10(options: TaskOptions) -> Task:
    """Load the task. Raises TaskError if torchvision or intact files are missing."""
    datasets = import_torchvision("datasets", "the task cifar10")
    sets = []
    for is_train in (True, False):
        try:
            found = datasets.CIFAR10(options.dataset_dir, train=is_train, download=options.download)
        except RuntimeError as error:
            raise TaskError(
                f"the task cifar10 expects the folder {options.dataset_dir / 'cifar-10-batches-py'}, complete and "
                "unchanged; put it there, name another folder with --dataset-dir, or add --download"
            ) from error
        sets.append(
            TensorSamples(
                torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous(),
                torch.tensor(found.targets, dtype=torch.int64),
                mean=tuple(255 * one for one in _MEAN),
                deviation=tuple(255 * one for one in _DEVIATION),
            )
        )
    train, test = sets
    return Task("cifar10", (3, 32, 32), 10, train, test, "cnn")
