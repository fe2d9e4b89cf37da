"""Tasks that need no files, and the order in which workers see samples."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from gem_worker.digits_file import held_out_mask
from gem_worker.errors import TaskError
from gem_worker.models import create_model
from gem_worker.settings import WorkerSettings
from gem_worker.tasks import (
    TaskOptions,
    create_task,
    epoch_order,
    held_out_batches,
    steps_per_epoch,
    task_names,
    training_batches,
)
from gem_worker.tasks.samples import Samples, TensorSamples
from gem_worker.tasks.torchvision_import import import_torchvision
from sklearn.datasets import load_digits
from torch.nn import functional


def all_of(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    return samples.batch(np.arange(len(samples)))


def test_digits_are_all_of_scikit_learns_and_a_fifth_of_each_class_is_held_out() -> None:
    task = create_task("digits")
    (train, train_labels), (test, test_labels) = all_of(task.train), all_of(task.test)
    truth = load_digits()
    held_out = held_out_mask(truth.target)
    assert torch.equal(train, torch.from_numpy(truth.images[~held_out] / 16).float().unsqueeze(1))
    assert torch.equal(test, torch.from_numpy(truth.images[held_out] / 16).float().unsqueeze(1))
    assert torch.equal(train_labels, torch.from_numpy(truth.target[~held_out]))
    for digit in range(10):
        share = int((test_labels == digit).sum()) / int((truth.target == digit).sum())
        assert 0.19 < share <= 0.2
    assert task.input_shape == tuple(train.shape[1:])


def test_digits28_are_the_same_digits_at_the_size_that_the_papers_network_was_made_for() -> None:
    small, large = create_task("digits"), create_task("digits28")
    for mine, theirs in ((large.train, small.train), (large.test, small.test)):
        (enlarged, labels), (images, truth) = all_of(mine), all_of(theirs)
        assert torch.equal(labels, truth)
        assert enlarged.shape == (len(images), 1, 28, 28)
        # Bilinear weights are those of a mean, so no pixel leaves the range, and averages over 8 x 8 cells agree.
        assert 0 <= enlarged.min() < enlarged.max() <= 1
        assert torch.allclose(functional.adaptive_avg_pool2d(enlarged, 1), images.mean((2, 3), keepdim=True), atol=0.05)
    assert large.input_shape == (1, 28, 28)
    network = create_model(large.default_model, large.input_shape, large.classes, 0)
    assert dict(network.named_parameters())["linear1.weight"].shape == (300, 320)


def test_the_held_out_fifth_is_the_same_in_every_process_and_version() -> None:
    """Fixed numbers: were they to change, accuracies of different versions could not be compared."""
    held_out = np.flatnonzero(held_out_mask(load_digits().target))
    assert len(held_out) == 355
    assert held_out[:8].tolist() == [33, 36, 37, 40, 44, 47, 51, 58]


def test_the_order_of_samples_follows_from_seed_rank_and_epoch_alone() -> None:
    samples = TensorSamples(torch.zeros(1000, 1, 1, 1), torch.arange(1000), (0.0,), (1.0,))
    order = epoch_order(samples, seed=1, rank=2, epoch=3)
    assert sorted(order) == list(range(1000))
    assert np.array_equal(order, epoch_order(samples, seed=1, rank=2, epoch=3))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not np.array_equal(order, epoch_order(samples, *other))


@pytest.mark.parametrize("side", [2, 64])
def test_batches_go_over_the_set_in_that_order_pass_after_pass(side: int) -> None:
    """Once fetched in line (small images), once by the thread that fetches ahead."""
    images = torch.arange(10).view(10, 1, 1, 1).expand(10, 1, side, side)
    samples = TensorSamples(images, torch.arange(10), mean=(1.0,), deviation=(2.0,))
    assert samples.is_slow == (side == 64)
    batches = training_batches(samples, batch_size=4, seed=5, rank=1)
    for epoch in range(3):
        order = epoch_order(samples, 5, 1, epoch)
        for step in range(2):
            number, (inputs, labels) = next(batches)
            assert number == epoch
            assert labels.tolist() == order[4 * step : 4 * step + 4].tolist()
            assert torch.equal(inputs, ((labels.float() - 1) / 2).view(4, 1, 1, 1).expand(4, 1, side, side))
    batches.close()


def test_a_batch_larger_than_the_set_is_the_set() -> None:
    samples = TensorSamples(torch.zeros(3, 1, 1, 1), torch.arange(3), (0.0,), (1.0,))
    assert steps_per_epoch(3, 64) == 1
    _, (_, labels) = next(training_batches(samples, 64, 0, 0))
    assert sorted(labels.tolist()) == [0, 1, 2]


def test_held_out_samples_come_all_and_once() -> None:
    task = create_task("digits")
    labels = torch.cat([labels for _, labels in held_out_batches(task.test, 100)])
    assert torch.equal(labels, all_of(task.test)[1])


def test_generated_images_have_the_asked_size_and_are_the_same_every_time() -> None:
    options = TaskOptions(image_size=40, generated_samples=12, generated_classes=5)
    first, again = create_task("generated-images", options), create_task("generated-images", options)
    assert (first.input_shape, first.classes, len(first.train), len(first.test)) == ((3, 40, 40), 5, 12, 3)
    inputs, labels = all_of(first.train)
    assert torch.equal(inputs, all_of(again.train)[0])
    assert inputs.shape == (12, 3, 40, 40)
    assert abs(float(inputs.mean())) < 0.05
    assert float(inputs.std()) == pytest.approx(1, abs=0.05)
    assert 0 <= int(labels.min()) <= int(labels.max()) < 5


def test_an_unknown_task_is_told_with_the_nearest_name() -> None:
    with pytest.raises(TaskError, match="no task 'minst'; did you mean mnist"):
        create_task("minst")
    with pytest.raises(TaskError, match=r"there are digits, digits28, mnist"):
        create_task("xyz")


def test_choosing_digits_imports_neither_torchvision_nor_scikit_learn(tmp_path: Path) -> None:
    from tests.worker.serving import processes_in

    code = (
        "import sys; from gem_worker.tasks import create_task; create_task('digits');"
        "assert not {'torchvision', 'sklearn'} & {*sys.modules}"
    )
    with processes_in(tmp_path) as processes:
        child = processes.start("imports", "-c", code)
        assert child.wait() == 0, child.output


def test_a_torchvision_that_does_not_fit_torch_gives_one_error_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a torchvision built for another torch does: its import raises RuntimeError about a missing operator."""
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskError) as caught:
        import_torchvision("models", "the model 'resnet18'")
    for part in (version("torch"), version("torchvision"), "nms does not exist", "pip install"):
        assert part in str(caught.value)


def test_settings_offer_exactly_the_tasks_that_there_are() -> None:
    assert get_args(WorkerSettings.model_fields["task"].annotation) == task_names()
