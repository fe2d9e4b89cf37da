"""Faint patterns under noise."""

import numpy as np
import torch
from gem_worker.tasks.samples import Task, TensorSamples
from torch.nn import functional

_SEED = 1805_08469
# Coarse, for AlexNet's stride of 4.
_GRID = 8
_SIDE = 64
_CLASSES = 10
_TRAIN, _TEST = 1024, 256
# Share of the pattern.
_STRENGTH = 0.5


def load_patterns() -> Task:
    """10 classes of AlexNet's smallest images."""
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
