"""scikit-learn's handwritten digits as arrays, with a fixed held-out split. Imports no torch."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gem_core.extras import explain_missing
from gem_worker.errors import TaskError

CLASSES = 10
SIDE = 8
MAXIMUM = 16  # of a pixel
HIDDEN = 64  # units of the perceptron that learns them

_HELD_OUT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Digits:
    """Samples in file order.

    Attributes:
        pixels: int64 [samples, 64], 0 to 16; 8 x 8, row-major.
        labels: int64 [samples], 0 to 9.
        held_out: bool [samples].
    """

    pixels: NDArray[np.int64]
    labels: NDArray[np.int64]
    held_out: NDArray[np.bool_]


def read_digits() -> Digits:
    """Read the digits. Raises TaskError without scikit-learn."""
    rows = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
    pixels, labels = rows[:, :-1], rows[:, -1]
    return Digits(pixels, labels, held_out_mask(labels))


def held_out_mask(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Select every fifth sample of each class."""
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]] = True
    return mask


def _file() -> Path:
    """Return the path of scikit-learn's file without importing scikit-learn, which would be slow."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise TaskError(explain_missing("sklearn", "digits", "the task digits"))
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
