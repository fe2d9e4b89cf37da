"""When hosts fail."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Failure:
    """At `seconds` host `number` is killed (0: the server's), and starts again `absent` seconds later."""

    seconds: float
    number: int
    absent: float


def periodic(workers: int, first: int) -> Iterator[Failure]:
    """A worker every 60 s, in turn from `first`, away for 20 s."""
    for number in itertools.count():
        yield Failure(10.0 + 60.0 * number, (first + number) % workers + 1, 20.0)


def random(means: dict[int, float], seed: int) -> Iterator[Failure]:
    """Each host after times with an exponential distribution of this mean; it starts again at once."""
    generator = np.random.default_rng(seed)
    next_of = {number: generator.exponential(mean) for number, mean in means.items()}
    while True:
        number = min(next_of, key=next_of.__getitem__)
        yield Failure(next_of[number], number, 0.0)
        next_of[number] += generator.exponential(means[number])
