"""Vectors for the rules, made from a seed: ordinary ones, and those on which arithmetic goes wrong."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("ordinary", "zeros", "denormal", "huge", "mixed")
# One element, less than one SIMD register, one more than 4096, and several blocks with a rest.
LENGTHS = (1, 7, 4097, 300_001)

Float32 = NDArray[np.float32]


class Sample(NamedTuple):
    """theta, s, m and delta of one commit."""

    theta: Float32
    snapshot: Float32
    moment: Float32
    delta: Float32


def make_sample(kind: str, length: int, seed: int) -> Sample:
    """Four float32 vectors. Deltas are at most 1e30, as staging guarantees."""
    random = np.random.default_rng([seed, length])
    if kind == "mixed":
        parts = [make_sample(other, length, seed) for other in KINDS[:-1]]
        choice = random.integers(0, len(parts), length)
        return Sample(*(np.choose(choice, vectors).astype(np.float32) for vectors in zip(*parts, strict=True)))
    scale = {"ordinary": 0.01, "zeros": 0.01, "denormal": 1e-41, "huge": 3e29}[kind]
    vectors = [
        np.clip(random.standard_normal(length) * scale * factor, -1e30, 1e30).astype(np.float32)
        for factor in (10, 10, 3, 1)
    ]
    # Where nothing was committed since, the snapshot is theta.
    vectors[1] = np.where(random.random(length) < 0.5, vectors[0], vectors[1])
    if kind == "zeros":
        for vector in vectors:
            vector[random.random(length) < 0.6] = 0
            vector[random.random(length) < 0.1] = -0.0
    return Sample(*vectors)
