"""MNIST and Fashion-MNIST from idx files, as torchvision lays them out or all in one folder."""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gem_core.regular_files import read_bytes
from gem_worker.errors import TaskError
from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Task, TensorSamples
from gem_worker.tasks.torchvision_import import import_torchvision

# For unsigned bytes; plus the number of dimensions.
_UNSIGNED_BYTES = 0x0800

# The Debian package with Fashion-MNIST's four files, and where it installs them.
FASHION_MNIST_PACKAGE = "dataset-fashion-mnist"
FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True, slots=True)
class _DataSet:
    """A data set of four idx files.

    Attributes:
        name: of the task.
        folder: torchvision's name of the data set, which is also its folder below `--dataset-dir`.
        mean, deviation: of the training pixels, as shares of 255.
        package: the Debian package that has the files, and its folder; None if there is none.
    """

    name: str
    folder: str
    mean: float
    deviation: float
    package: tuple[str, Path] | None = None


def load_mnist(options: TaskOptions) -> Task:
    """Load MNIST. Raises TaskError if files are missing or invalid."""
    return _load(_DataSet("mnist", "MNIST", 0.1307, 0.3081), options)


def load_fashion_mnist(options: TaskOptions) -> Task:
    """Load Fashion-MNIST, by default from Debian's package if it is installed. Raises as `load_mnist`."""
    package = FASHION_MNIST_PACKAGE, FASHION_MNIST_FOLDER
    return _load(_DataSet("fashion-mnist", "FashionMNIST", 0.2860, 0.3530, package), options)


def _load(wanted: _DataSet, options: TaskOptions) -> Task:
    folder = _folder(wanted, options)
    if folder is None and options.download:
        module = import_torchvision("datasets", f"--download of {wanted.name}")
        getattr(module, wanted.folder)(options.dataset_dir, download=True)
        folder = _folder(wanted, options)
    if folder is None:
        raise TaskError(_explain_missing(wanted, options))
    sets = []
    for prefix in ("train", "t10k"):
        images = read_idx(_path(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
        labels = read_idx(_path(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
        if len(images) != len(labels):
            raise TaskError(f"{folder}: {len(images)} {prefix} images but {len(labels)} labels; fetch the files again")
        sets.append(
            TensorSamples(
                torch.from_numpy(images).unsqueeze(1),
                torch.from_numpy(labels.astype(np.int64)),
                mean=(255 * wanted.mean,),
                deviation=(255 * wanted.deviation,),
            )
        )
    height, width = images.shape[1:]
    train, test = sets
    return Task(wanted.name, (1, height, width), 10, train, test, "cnn")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped if it ends in .gz.

    Raises TaskError if invalid.
    """
    try:
        data = read_bytes(path)
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{path} cannot be read ({error}); fetch the file again") from error
    header = struct.calcsize(f">{1 + dimensions}I")
    if len(data) < header:
        raise TaskError(f"{path} is no idx file: it is only {len(data)} bytes long; fetch the file again")
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", data)
    if magic != _UNSIGNED_BYTES + dimensions:
        raise TaskError(f"{path} is no idx file of {dimensions} dimensions: it starts with {magic:#x}")
    if len(data) - header != int(np.prod(shape, dtype=np.int64)):
        raise TaskError(f"{path} is cut off: {len(data) - header} bytes for the shape {shape}; fetch the file again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()


def _folder(wanted: _DataSet, options: TaskOptions) -> Path | None:
    """The first folder with all four files; None if there is none.

    Debian's folder counts only if `--dataset-dir` has its default: a folder that the user named is never replaced.
    """
    places = [options.dataset_dir / wanted.folder / "raw", options.dataset_dir]
    if wanted.package is not None and options.dataset_dir == TaskOptions().dataset_dir:
        places.append(wanted.package[1])
    return next((place for place in places if not _missing(place)), None)


def _missing(folder: Path) -> list[str]:
    names = [f"{prefix}-{kind}-ubyte" for prefix in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return [name for name in names if not _path(folder, name).exists()]


def _path(folder: Path, name: str) -> Path:
    """The plain file, or the gzipped one if only that can exist."""
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.gz"


def _explain_missing(wanted: _DataSet, options: TaskOptions) -> str:
    raw = options.dataset_dir / wanted.folder / "raw"
    message = f"the task {wanted.name} expects {raw / _missing(raw)[0]} (or the same with .gz"
    message += f", or all four files in {options.dataset_dir}); "
    if wanted.package is not None:
        message += f"install Debian's package (apt-get install {wanted.package[0]}) and leave --dataset-dir out, "
    return message + "put the files there, name another folder with --dataset-dir, or add --download"
