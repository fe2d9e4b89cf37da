"""Tasks that read files, on small sets in the formats that are distributed."""

import gzip
import hashlib
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from gem_worker.errors import TaskError
from gem_worker.tasks import TaskOptions, create_task, idx_images
from gem_worker.tasks.idx_images import read_idx
from numpy.typing import NDArray
from PIL import Image

Write = Callable[[Path, bytes], object]


def plain(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def compressed(path: Path, data: bytes) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, write: Write = plain) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(3)
    sets = {}
    for prefix, count in (("train", 20), ("t10k", 6)):
        images = generator.integers(0, 256, (count, 28, 28), np.uint8)
        labels = generator.integers(0, 10, count, np.uint8)
        write(folder / f"{prefix}-images-idx3-ubyte", idx(images))
        write(folder / f"{prefix}-labels-idx1-ubyte", idx(labels))
        sets[prefix] = images, labels
    return sets


@pytest.mark.parametrize("write", [plain, compressed])
@pytest.mark.parametrize(
    ("task_name", "folder", "mean", "deviation"),
    [("mnist", "MNIST", 0.1307, 0.3081), ("fashion-mnist", "FashionMNIST", 0.2860, 0.3530)],
)
def test_mnist_is_read_from_plain_and_compressed_idx_files(
    task_name: str, folder: str, mean: float, deviation: float, write: Write, tmp_path: Path
) -> None:
    sets = write_mnist(tmp_path / folder / "raw", write)
    task = create_task(task_name, TaskOptions(dataset_dir=tmp_path))
    assert (task.input_shape, task.classes, task.default_model) == ((1, 28, 28), 10, "cnn")
    for samples, (images, labels) in ((task.train, sets["train"]), (task.test, sets["t10k"])):
        inputs, targets = samples.batch(np.arange(len(samples)))
        expected = (torch.from_numpy(images).float().unsqueeze(1) / 255 - mean) / deviation
        assert torch.allclose(inputs, expected, atol=1e-5)
        assert targets.tolist() == labels.tolist()


@pytest.mark.parametrize("write", [plain, compressed])
@pytest.mark.parametrize("task_name", ["mnist", "fashion-mnist"])
def test_a_folder_of_the_four_files_themselves_is_read(task_name: str, write: Write, tmp_path: Path) -> None:
    sets = write_mnist(tmp_path / "files", write)
    task = create_task(task_name, TaskOptions(dataset_dir=tmp_path / "files"))
    assert task.test.batch(np.arange(6))[1].tolist() == sets["t10k"][1].tolist()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the one of Debian's package, seen from another working directory without data."""
    folder = tmp_path / "share"
    monkeypatch.setattr(idx_images, "FASHION_MNIST_FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_fashion_mnist_is_found_where_debians_package_puts_it(package: Path) -> None:
    sets = write_mnist(package, compressed)
    assert create_task("fashion-mnist").test.batch(np.arange(6))[1].tolist() == sets["t10k"][1].tolist()
    with pytest.raises(TaskError, match="the task mnist expects"):
        create_task("mnist")


def test_a_folder_that_the_user_named_is_never_replaced_by_the_packages(package: Path, tmp_path: Path) -> None:
    write_mnist(package, compressed)
    with pytest.raises(TaskError, match="the task fashion-mnist expects"):
        create_task("fashion-mnist", TaskOptions(dataset_dir=tmp_path / "named"))


def test_files_below_data_come_before_the_packages(package: Path, tmp_path: Path) -> None:
    write_mnist(package, compressed)
    own = write_mnist(tmp_path / "data" / "FashionMNIST" / "raw")
    (tmp_path / "data" / "FashionMNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(idx(np.full(20, 7, np.uint8)))
    task = create_task("fashion-mnist")
    assert task.train.batch(np.arange(20))[1].tolist() == [7] * 20
    assert task.test.batch(np.arange(6))[1].tolist() == own["t10k"][1].tolist()


def test_without_any_files_the_package_is_named(package: Path) -> None:
    with pytest.raises(TaskError, match=r"install Debian's package \(apt-get install dataset-fashion-mnist\)"):
        create_task("fashion-mnist")
    write_mnist(package, compressed)
    (package / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(TaskError, match="apt-get install dataset-fashion-mnist"):
        create_task("fashion-mnist")


@pytest.mark.skipif(
    not idx_images.FASHION_MNIST_FOLDER.exists(), reason="Debian's package dataset-fashion-mnist is not installed"
)
def test_debians_package_has_all_of_fashion_mnist() -> None:
    task = create_task("fashion-mnist", TaskOptions(dataset_dir=idx_images.FASHION_MNIST_FOLDER))
    assert (len(task.train), len(task.test), task.input_shape) == (60_000, 10_000, (1, 28, 28))
    inputs, labels = task.train.batch(task.train.numbers())
    assert torch.bincount(labels).tolist() == [6_000] * 10
    assert float(inputs.mean()) == pytest.approx(0, abs=0.01)
    assert float(inputs.std()) == pytest.approx(1, abs=0.01)


def test_torchvision_reads_the_same_files(tmp_path: Path) -> None:
    """The format this test writes is the one that torchvision lays out, not one that only our reader understands."""
    sets = write_mnist(tmp_path / "MNIST" / "raw")
    theirs = torchvision.datasets.MNIST(tmp_path, train=True)
    assert np.array_equal(theirs.data.numpy(), sets["train"][0])


def test_missing_files_are_told_with_the_place_where_they_are_expected(tmp_path: Path) -> None:
    for name, part in (
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("fashion-mnist", "FashionMNIST/raw/train-images-idx3-ubyte"),
        ("cifar10", "cifar-10-batches-py"),
        ("imagefolder", "train/CLASS"),
    ):
        with pytest.raises(TaskError) as caught:
            create_task(name, TaskOptions(dataset_dir=tmp_path / "none"))
        assert part in str(caught.value)
        assert "--dataset-dir" in str(caught.value)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:-1], "is cut off: 26 bytes for the shape"),
        (lambda data: data + b"x", "is cut off: 28 bytes for the shape"),
        (lambda data: data[:7], "only 7 bytes long"),
        (lambda data: b"\0\0\x0d\3" + data[4:], r"no idx file of 3 dimensions: it starts with 0xd03"),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name(damage: Callable[[bytes], bytes], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(damage(idx(np.zeros((3, 3, 3), np.uint8))))
    with pytest.raises(TaskError, match=expected) as caught:
        read_idx(path, dimensions=3)
    assert str(path) in str(caught.value)


def test_a_damaged_gzip_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((3, 3, 3), np.uint8)))[:-9])
    with pytest.raises(TaskError, match=r"images\.gz cannot be read"):
        read_idx(path, dimensions=3)


def test_different_numbers_of_images_and_labels_are_refused(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    (raw / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(TaskError, match="20 train images but 19 labels"):
        create_task("mnist", TaskOptions(dataset_dir=tmp_path))


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """Small batches in CIFAR-10's format; torchvision, which checks checksums, is told those of these files."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(4)
    pixels, sums = {}, {}
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        pixels[name] = generator.integers(0, 256, (4, 3072), np.uint8)
        batch = {"data": pixels[name], "labels": [0, 1, 2, 9]}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {number}" for number in range(10)]}))
    for path in folder.iterdir():
        sums[path.name] = hashlib.md5(path.read_bytes()).hexdigest()
    known = torchvision.datasets.CIFAR10
    monkeypatch.setattr(known, "train_list", [[n, sums[n]] for n in sums if n.startswith("data")])
    monkeypatch.setattr(known, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(known, "meta", known.meta | {"md5": sums["batches.meta"]})
    return pixels


def test_cifar10_is_read_from_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = write_cifar(tmp_path, monkeypatch)
    task = create_task("cifar10", TaskOptions(dataset_dir=tmp_path))
    assert (task.input_shape, task.classes, len(task.train), len(task.test)) == ((3, 32, 32), 10, 20, 4)
    inputs, labels = task.test.batch(np.array([3, 0]))
    assert labels.tolist() == [9, 0]
    raw = torch.from_numpy(pixels["test_batch"][[3, 0]]).view(2, 3, 32, 32).float() / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    assert torch.allclose(inputs, (raw - mean.view(3, 1, 1)) / deviation.view(3, 1, 1), atol=1e-5)


def test_a_changed_cifar10_file_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path, monkeypatch)
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(TaskError, match="complete and unchanged"):
        create_task("cifar10", TaskOptions(dataset_dir=tmp_path))


def write_images(root: Path, test_folder: str = "test") -> None:
    for part, count in (("train", 3), (test_folder, 1)):
        for shade, name in ((0, "black"), (255, "white")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (50, 40), (shade, shade, shade)).save(folder / f"{number}.png")


@pytest.mark.parametrize("test_folder", ["test", "val"])
def test_an_image_folder_is_read_resized_and_normalised(test_folder: str, tmp_path: Path) -> None:
    write_images(tmp_path, test_folder)
    task = create_task("imagefolder", TaskOptions(dataset_dir=tmp_path, image_size=28))
    assert (task.input_shape, task.classes, len(task.train), len(task.test)) == ((3, 28, 28), 2, 6, 2)
    inputs, labels = task.train.batch(np.array([5, 0]))
    assert labels.tolist() == [1, 0]
    assert labels.dtype is torch.int64
    assert inputs.shape == (2, 3, 28, 28)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for image, shade in ((inputs[0], 1.0), (inputs[1], 0.0)):
        assert torch.allclose(image, ((shade - mean) / deviation).view(3, 1, 1).expand(3, 28, 28), atol=1e-5)


def test_image_folders_with_different_classes_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path)
    extra = tmp_path / "train" / "grey"
    extra.mkdir()
    Image.new("RGB", (8, 8)).save(extra / "0.png")
    with pytest.raises(TaskError, match="only one has grey"):
        create_task("imagefolder", TaskOptions(dataset_dir=tmp_path))


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "train" / "black" / "0.png").write_bytes(b"no image")
    task = create_task("imagefolder", TaskOptions(dataset_dir=tmp_path, image_size=8))
    with pytest.raises(TaskError, match=r"black/0\.png cannot be read"):
        task.train.batch(np.array([0]))
