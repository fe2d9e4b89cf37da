"""Images in DIR/train/CLASS/*, held-out ones in DIR/test or DIR/val."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gem_worker.errors import TaskError
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Batch, Samples, Task
from gem_worker.tasks.torchvision_import import import_torchvision

# ImageNet's.
_MEAN = [0.485, 0.456, 0.406]
_DEVIATION = [0.229, 0.224, 0.225]
# Of the shorter side, as in torchvision's recipes.
_CROP = 0.875


class ImageFiles(Samples):
    """Files decoded by threads (decoding releases the GIL)."""

    def __init__(self, folder: Any, threads: int) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gemps-images")

    def __len__(self) -> int:
        return len(self._folder)

    @property
    def is_slow(self) -> bool:
        """Always True."""
        return True

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """See `Samples.batch`. Raises TaskError for undecodable files."""
        pairs = list(self._threads.map(self._load, numbers.tolist()))
        return torch.stack([image for image, _ in pairs]), torch.tensor([label for _, label in pairs])

    def _load(self, number: int) -> tuple[Tensor, int]:
        try:
            image, label = self._folder[number]
        except OSError as error:
            path, _ = self._folder.samples[number]
            raise TaskError(f"{path} cannot be read as an image ({error}); repair or remove it") from error
        return image, label


def load_image_folder(options: TaskOptions) -> Task:
    """Load the task. Raises TaskError if folders are missing or classes differ."""
    datasets = import_torchvision("datasets", "the task imagefolder")
    transforms = import_torchvision("transforms", "the task imagefolder")
    transform = transforms.Compose(
        [
            transforms.Resize(round(options.image_size / _CROP)),
            transforms.CenterCrop(options.image_size),
            transforms.ToTensor(),
            transforms.Normalize(_MEAN, _DEVIATION),
        ]
    )
    train_dir, test_dir = _folders(options.dataset_dir)
    try:
        train, test = (datasets.ImageFolder(folder, transform) for folder in (train_dir, test_dir))
    except FileNotFoundError as error:  # no classes, or a class without images
        raise TaskError(
            f"the task imagefolder expects images in {train_dir}/CLASS and {test_dir}/CLASS: {error}"
        ) from error
    if train.classes != test.classes:
        different = sorted(set(train.classes) ^ set(test.classes))
        raise TaskError(f"{train_dir} and {test_dir} must hold the same classes; only one has {', '.join(different)}")
    shape = (3, options.image_size, options.image_size)
    files, held_out_files = (ImageFiles(folder, options.loader_threads) for folder in (train, test))
    return Task("imagefolder", shape, len(train.classes), files, held_out_files, "resnet18")


def _folders(root: Path) -> tuple[Path, Path]:
    train = root / "train"
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if not train.is_dir() or not tests:
        raise TaskError(
            f"the task imagefolder expects {train}/CLASS/*.png (or .jpg) and {root / 'test'}/CLASS/* (or "
            f"{root / 'val'}); put the images there, or name another folder with --dataset-dir"
        )
    return train, tests[0]
