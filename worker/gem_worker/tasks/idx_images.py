"""MNIST and Fashion-MNIST from idx files."""

import gzip
import struct
import zlib
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


def load_mnist(options: TaskOptions) -> Task:
    """Load MNIST. Raises TaskError if files are missing or invalid."""
    return _load("mnist", "MNIST", options, mean=0.1307, deviation=0.3081)


def load_fashion_mnist(options: TaskOptions) -> Task:
    """Load Fashion-MNIST; raises as `load_mnist`."""
    return _load("fashion-mnist", "FashionMNIST", options, mean=0.2860, deviation=0.3530)


def _load(name: str, folder: str, options: TaskOptions, *, mean: float, deviation: float) -> Task:
    raw = options.dataset_dir / folder / "raw"
    if options.download and not _is_complete(raw):
        import_torchvision("datasets", f"--download of {name}").__dict__[folder](options.dataset_dir, download=True)
    sets = []
    for prefix in ("train", "t10k"):
        images = read_idx(_find(raw, f"{prefix}-images-idx3-ubyte", name), dimensions=3)
        labels = read_idx(_find(raw, f"{prefix}-labels-idx1-ubyte", name), dimensions=1)
        if len(images) != len(labels):
            raise TaskError(f"{raw}: {len(images)} {prefix} images but {len(labels)} labels; fetch the files again")
        sets.append(
            TensorSamples(
                torch.from_numpy(images).unsqueeze(1),
                torch.from_numpy(labels.astype(np.int64)),
                mean=(255 * mean,),
                deviation=(255 * deviation,),
            )
        )
    height, width = images.shape[1:]
    train, test = sets
    return Task(name, (1, height, width), 10, train, test, "cnn")


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


def _is_complete(raw: Path) -> bool:
    names = [f"{p}-{kind}-ubyte" for p in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return all((raw / name).exists() or (raw / f"{name}.gz").exists() for name in names)


def _find(raw: Path, name: str, task: str) -> Path:
    for path in (raw / name, raw / f"{name}.gz"):
        if path.exists():
            return path
    raise TaskError(
        f"the task {task} expects {raw / name} (or the same with .gz); put the file there, name another folder with "
        "--dataset-dir, or add --download"
    )
