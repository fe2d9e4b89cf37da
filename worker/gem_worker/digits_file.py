"""scikit-learn's 1 797 real handwritten digits as arrays, and which of them are held out. Imports no torch.

The task digits trains on these; `gemps export-task` writes them down for workers in other languages.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gem_worker.errors import TaskError

CLASSES = 10
SIDE = 8
MAXIMUM = 16  # a pixel is a whole number from 0 to this

# Every fifth image of each class is held out.
_HELD_OUT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Digits:
    """All samples in file order.

    Attributes:
        pixels: int64 [samples, 64], each from 0 to 16; 8 x 8, row-major.
        labels: int64 [samples], each from 0 to 9.
        held_out: bool [samples]: which ones are never trained on.
    """

    pixels: NDArray[np.int64]
    labels: NDArray[np.int64]
    held_out: NDArray[np.bool_]


def read_digits() -> Digits:
    """Raises TaskError where scikit-learn is not installed."""
    rows = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
    pixels, labels = rows[:, :-1], rows[:, -1]
    return Digits(pixels, labels, held_out_mask(labels))


def held_out_mask(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for the held-out 20 %: of each class every fifth sample in file order.

    Stratified by construction, and fixed: no seed, no random generator and no version of a library changes it.
    """
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]] = True
    return mask


def _file() -> Path:
    """The file that `sklearn.datasets.load_digits` reads.

    It is found without importing scikit-learn, which takes more than a second of each worker's start. A row is the 64
    pixels of an image and its label.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise TaskError('the task digits needs scikit-learn: pip install "gemps[worker]"')
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
