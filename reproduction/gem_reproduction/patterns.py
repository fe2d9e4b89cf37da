"""Images that are made, and that can be learnt from: for figure 7 where there is no folder of images.

Each class has a pattern of its own, smooth in space and faint beside an image's own smooth noise. They stand in for
photographs in nothing but size: whoever reads a figure made with them is told.
"""

import numpy as np
import torch
from gem_worker.tasks.samples import Task, TensorSamples
from torch.nn import functional

# The same images whatever a run's seed is.
_SEED = 1805_08469
# Of a pattern's grid before it is enlarged, so that convolutions of AlexNet's stride of 4 see it.
_GRID = 8
_SIDE = 64
_CLASSES = 10
_TRAIN, _TEST = 1024, 256
# How much of an image is its class's pattern; the rest is noise.
_STRENGTH = 0.5


def load_patterns() -> Task:
    """10 classes, 1 024 training and 256 held-out images of 3 x 64 x 64 pixels, the least that AlexNet takes."""
    generator = np.random.default_rng(_SEED)
    patterns = generator.standard_normal((_CLASSES, 3, _GRID, _GRID), np.float32)
    train, test = (_samples(generator, patterns, count) for count in (_TRAIN, _TEST))
    return Task("patterns", (3, _SIDE, _SIDE), _CLASSES, train, test, "alexnet")


def _samples(generator: np.random.Generator, patterns: np.ndarray, count: int) -> TensorSamples:
    labels = generator.permutation(np.arange(count, dtype=np.int64) % _CLASSES)
    noise = generator.standard_normal((count, *patterns.shape[1:]), np.float32)
    small = torch.from_numpy(_STRENGTH * patterns[labels] + (1 - _STRENGTH) * noise)
    images = functional.interpolate(small, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
    return TensorSamples(images, torch.from_numpy(labels), mean=(0.0,) * 3, deviation=(1.0,) * 3)
