"""Random images and labels, for measuring throughput."""

import numpy as np
import torch

from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Task, TensorSamples

# Independent of the run's seed.
_SEED = 1805_08469


def load_generated_images(options: TaskOptions) -> Task:
    """Generate the task, with a quarter as many held-out samples."""
    shape = (3, options.image_size, options.image_size)
    generator = np.random.default_rng(_SEED)
    train, test = (
        TensorSamples(
            torch.from_numpy(generator.integers(0, 256, (count, *shape), np.uint8)),
            torch.from_numpy(generator.integers(0, options.generated_classes, count, np.int64)),
            mean=(127.5,) * 3,
            deviation=(73.9,) * 3,  # uniform bytes: 256 / sqrt(12)
        )
        for count in (options.generated_samples, max(1, options.generated_samples // 4))
    )
    return Task("generated-images", shape, options.generated_classes, train, test, "resnet18")
