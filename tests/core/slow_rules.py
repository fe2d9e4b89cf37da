"""Slow twins of the rules that are not GEM: each twice, and neither knows the other.

`Plain...` does what a rule's docstring says, one NumPy operation after the other, in float32: the kernels must equal it
bit for bit. `Paper...` does what the paper says, in its own variables, gradients and learning rate, in float64: so it
judges the rewriting in deltas.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]
ETA = 0.05


@dataclass
class Effect:
    """Of one commit, elementwise: the factor on delta, what was added to theta, the moment after it (None: without)."""

    factor: Vector
    update: Vector
    moment: Vector | None = None


class Twin(ABC):
    """theta, and what each worker holds, by name. `dtype` is that of all vectors."""

    dtype: type[np.floating] = np.float32

    def __init__(self, theta: NDArray[np.float32], **settings: float) -> None:
        self.theta: Vector = theta.astype(self.dtype)
        self.held: dict[int, Vector] = {}
        self.commits = 0
        for name, value in settings.items():
            setattr(self, name, value)
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Make what the run keeps."""

    def join(self, worker: int) -> None:
        """A worker begins."""
        self.pull(worker)

    def pull(self, worker: int) -> None:
        """A worker that is there pulls."""
        self.held[worker] = self.theta.copy()

    def leave(self, worker: int) -> None:
        """A worker goes; most rules keep nothing that it would have to be taken out of."""
        del self.held[worker]

    @abstractmethod
    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        """Apply a delta that was computed at `held[worker]`."""

    def zeros(self) -> Vector:
        return np.zeros_like(self.theta)


class Paper(Twin):
    """In float64, and in gradients."""

    dtype = np.float64

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        before = self.theta.copy()
        self.commits += 1
        self.take(worker, delta.astype(np.float64) / -ETA)
        return Effect(np.full_like(before, np.nan), self.theta - before)

    @abstractmethod
    def take(self, worker: int, g: Vector) -> None:
        """The server's step for a gradient, and the worker's new parameters."""


class PlainDcAsgd(Twin):
    strength: float
    decay: float
    epsilon: float

    def begin(self) -> None:
        self.square: dict[int, Vector] = {}

    def join(self, worker: int) -> None:
        self.square[worker] = self.zeros()
        self.pull(worker)

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single = np.float32
        kept = single(self.decay) * self.square[worker]
        self.square[worker] = kept + single(1 - self.decay) * (delta * delta)
        root = np.sqrt(self.square[worker] + single(self.epsilon))
        factor = single(1) - (single(self.strength) * (delta / root)) * (self.theta - self.held[worker])
        update = factor * delta
        self.theta = self.theta + update
        self.pull(worker)
        return Effect(factor, update)


class PaperDcAsgd(Paper):
    """Section 6, with w_bak and MeanSquare of each worker."""

    strength: float
    decay: float

    def begin(self) -> None:
        self.square: dict[int, Vector] = {}

    def join(self, worker: int) -> None:
        self.square[worker] = self.zeros()
        self.pull(worker)

    def take(self, worker: int, g: Vector) -> None:
        self.square[worker] = self.decay * self.square[worker] + (1 - self.decay) * g**2
        strength = self.strength / np.sqrt(self.square[worker] + 1e-7)
        self.theta -= ETA * (g + strength * g * g * (self.theta - self.held[worker]))
        self.pull(worker)


class PlainGapAware(Twin):
    decay: float
    epsilon: float

    def begin(self) -> None:
        self.square = self.zeros()

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single = np.float32
        self.commits += 1
        self.square = single(self.decay) * self.square + single(1 - self.decay) * (delta * delta)
        step = np.sqrt(self.square / single(1 - self.decay**self.commits)) + single(self.epsilon)
        penalty = single(1) + np.abs(self.theta - self.held[worker]) / step
        update = delta / penalty
        self.theta = self.theta + update
        self.pull(worker)
        return Effect(single(1) / penalty, update)


class PaperGapAware(Paper):
    """As the authors' group has it in FTPipe, with a maximum of eta that is eta."""

    decay: float

    def begin(self) -> None:
        self.square = self.zeros()

    def take(self, worker: int, g: Vector) -> None:
        self.square = self.decay * self.square + (1 - self.decay) * g**2
        average = ETA * (np.sqrt(self.square / (1 - self.decay**self.commits)) + 1e-8)
        gap = np.abs(self.theta - self.held[worker]) / average
        self.theta -= ETA * g / (1 + gap)
        self.pull(worker)


class PlainRingmaster(Twin):
    """By the number k of applied updates, which each worker has with its parameters."""

    threshold: float

    def begin(self) -> None:
        self.k = 0
        self.k_of: dict[int, int] = {}

    def pull(self, worker: int) -> None:
        super().pull(worker)
        self.k_of[worker] = self.k

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        is_fresh = self.k - self.k_of[worker] < self.threshold
        if is_fresh:
            self.theta = self.theta + delta
            self.k += 1
        self.pull(worker)
        return Effect(np.full_like(delta, is_fresh), delta if is_fresh else self.zeros())


class PaperRingmaster(Paper):
    """Algorithm 4. The delay is the age of a gradient in steps of k."""

    threshold: float

    def begin(self) -> None:
        self.iterates = [self.theta.copy()]
        self.index: dict[int, int] = {}

    def pull(self, worker: int) -> None:
        super().pull(worker)
        self.index[worker] = len(self.iterates) - 1

    def take(self, worker: int, g: Vector) -> None:
        k = len(self.iterates) - 1
        if k - self.index[worker] < self.threshold:
            self.theta = self.iterates[k] - ETA * g
            self.iterates.append(self.theta)
        self.pull(worker)


class PlainEasgd(Twin):
    alpha: float
    momentum: float

    def begin(self) -> None:
        self.x: dict[int, Vector] = {}
        self.v: dict[int, Vector] = {}

    def join(self, worker: int) -> None:
        self.v[worker] = self.zeros()
        self.pull(worker)

    def pull(self, worker: int) -> None:
        self.x[worker] = self.theta.copy()
        self.look(worker)

    def look(self, worker: int) -> None:
        if self.momentum:
            self.held[worker] = self.x[worker] + np.float32(self.momentum) * self.v[worker]
        else:
            self.held[worker] = self.x[worker].copy()

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        step = delta
        if self.momentum:
            step = self.v[worker] = np.float32(self.momentum) * self.v[worker] + delta
        moved = self.x[worker] + step
        elastic = np.float32(self.alpha) * (moved - self.theta)
        self.theta = self.theta + elastic
        self.x[worker] = moved - elastic
        self.look(worker)
        factor = np.full_like(delta, self.alpha)
        return Effect(factor, elastic, self.v[worker] if self.momentum else None)


class PaperEasgd(Paper):
    """Algorithms 1 and 2 from one exchange to the next: the worker's step, then x and x~ give way to each other."""

    alpha: float
    momentum: float

    def begin(self) -> None:
        self.x: dict[int, Vector] = {}
        self.v: dict[int, Vector] = {}

    def join(self, worker: int) -> None:
        self.v[worker] = self.zeros()
        self.pull(worker)

    def pull(self, worker: int) -> None:
        self.x[worker] = self.theta.copy()
        self.held[worker] = self.x[worker] + self.momentum * self.v[worker]

    def take(self, worker: int, g: Vector) -> None:
        self.v[worker] = self.momentum * self.v[worker] - ETA * g
        x, center = self.x[worker] + self.v[worker], self.theta
        self.x[worker] = x - self.alpha * (x - center)
        self.theta = center + self.alpha * (x - center)
        self.held[worker] = self.x[worker] + self.momentum * self.v[worker]


class PlainDana(Twin):
    momentum: float

    def begin(self) -> None:
        self.v: dict[int, Vector] = {}
        self.total = self.zeros()

    def join(self, worker: int) -> None:
        self.v[worker] = self.zeros()
        self.pull(worker)

    def pull(self, worker: int) -> None:
        self.held[worker] = self.theta + np.float32(self.momentum) * self.total

    def leave(self, worker: int) -> None:
        super().leave(worker)
        self.total = self.total - self.v.pop(worker)

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        rest = self.total - self.v[worker]
        self.v[worker] = np.float32(self.momentum) * self.v[worker] + delta
        self.total = rest + self.v[worker]
        self.theta = self.theta + self.v[worker]
        self.pull(worker)
        return Effect(np.ones_like(delta), self.v[worker], self.v[worker])


class PaperDana(Paper):
    """DANA-Zero, with the sum of the momenta made anew each time."""

    momentum: float

    def begin(self) -> None:
        self.v: dict[int, Vector] = {}

    def join(self, worker: int) -> None:
        self.v[worker] = self.zeros()
        self.pull(worker)

    def pull(self, worker: int) -> None:
        self.held[worker] = self.theta - ETA * self.momentum * sum(self.v.values(), self.zeros())

    def leave(self, worker: int) -> None:
        super().leave(worker)
        del self.v[worker]

    def take(self, worker: int, g: Vector) -> None:
        self.v[worker] = self.momentum * self.v[worker] + g
        self.theta -= ETA * self.v[worker]
        self.pull(worker)


class PlainDelayedNesterov(Twin):
    momentum: float
    delay: float
    activation: float

    def begin(self) -> None:
        self.m, self.buffer = self.zeros(), self.zeros()

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single = np.float32
        self.commits += 1
        self.buffer = self.buffer + delta
        share = single(self.activation * self.momentum)
        if self.commits % self.delay == 0:
            self.m = single(self.momentum) * self.m + self.buffer / single(self.delay)
            share = single((1 - self.activation * self.delay + self.activation) * self.momentum)
            self.buffer = self.zeros()
        update = share * self.m + delta / single(self.delay)
        self.theta = self.theta + update
        self.pull(worker)
        return Effect(np.full_like(delta, 1 / self.delay), update, self.m)


class PaperDelayedNesterov(Paper):
    """The paper's update, t from 0."""

    momentum: float
    delay: float
    activation: float

    def begin(self) -> None:
        self.m, self.gathered = self.zeros(), self.zeros()

    def take(self, worker: int, g: Vector) -> None:
        beta, n, c = self.momentum, self.delay, self.activation
        self.gathered += g
        if self.commits % n == 0:
            self.m = beta * self.m + self.gathered / n
            self.theta -= ETA * ((1 - c * n + c) * beta * self.m + g / n)
            self.gathered = self.zeros()
        else:
            self.theta -= ETA * (c * beta * self.m + g / n)
        self.pull(worker)


class PlainFedBuff(Twin):
    """By the number of a model's version, which each worker has with its parameters."""

    buffer: float
    outer_eta: float

    def begin(self) -> None:
        self.sum, self.version = self.zeros(), 0
        self.version_of: dict[int, int] = {}

    def pull(self, worker: int) -> None:
        super().pull(worker)
        self.version_of[worker] = self.version

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single = np.float32
        self.commits += 1
        weight, rate = (
            single((1 + self.version - self.version_of[worker]) ** -0.5),
            single(self.outer_eta / self.buffer),
        )
        self.sum = self.sum + weight * delta
        update = self.zeros()
        if self.commits % self.buffer == 0:
            update = rate * self.sum
            self.theta = self.theta + update
            self.sum, self.version = self.zeros(), self.version + 1
        self.pull(worker)
        return Effect(np.full_like(delta, rate * weight), update)


class PaperFedBuff(Paper):
    """Algorithm 1, with the deltas themselves in the buffer."""

    buffer: float
    outer_eta: float

    def begin(self) -> None:
        self.gathered: list[Vector] = []
        self.version = 0
        self.version_of: dict[int, int] = {}

    def pull(self, worker: int) -> None:
        super().pull(worker)
        self.version_of[worker] = self.version

    def take(self, worker: int, g: Vector) -> None:
        self.gathered.append(-ETA * g / np.sqrt(1 + self.version - self.version_of[worker]))
        if len(self.gathered) == self.buffer:
            self.theta = self.theta + self.outer_eta * np.mean(self.gathered, axis=0)
            self.gathered, self.version = [], self.version + 1
        self.pull(worker)


class PlainFadas(PlainFedBuff):
    beta1: float
    beta2: float
    epsilon: float
    delay: float

    def begin(self) -> None:
        super().begin()
        self.m, self.v, self.largest, self.delays = self.zeros(), self.zeros(), self.zeros(), [0]

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single = np.float32
        self.commits += 1
        self.delays.append(self.version - self.version_of[worker])
        self.sum = self.sum + delta
        update = self.zeros()
        if self.commits % self.buffer == 0:
            mean = self.sum / single(self.buffer)
            self.m = single(self.beta1) * self.m + single(1 - self.beta1) * mean
            self.v = single(self.beta2) * self.v + single(1 - self.beta2) * (mean * mean)
            self.largest = np.where(self.v > self.largest, self.v, self.largest)
            late = max(self.delays)
            rate = single(self.outer_eta / late if late > self.delay else self.outer_eta)
            update = rate * (self.m / (np.sqrt(self.largest) + single(self.epsilon)))
            self.theta = self.theta + update
            self.sum, self.version, self.delays = self.zeros(), self.version + 1, [0]
        self.pull(worker)
        return Effect(np.full_like(delta, 1 / self.buffer), update, self.m)


class PaperFadas(PaperFedBuff):
    """Algorithm 1 with the delay-adaptive rate as the authors' code has it."""

    beta1: float
    beta2: float
    epsilon: float
    delay: float

    def begin(self) -> None:
        super().begin()
        self.m, self.v, self.largest = self.zeros(), self.zeros(), self.zeros()
        self.delays: list[int] = []

    def take(self, worker: int, g: Vector) -> None:
        self.gathered.append(-ETA * g)
        self.delays.append(self.version - self.version_of[worker])
        if len(self.gathered) == self.buffer:
            mean = np.mean(self.gathered, axis=0)
            self.m = self.beta1 * self.m + (1 - self.beta1) * mean
            self.v = self.beta2 * self.v + (1 - self.beta2) * mean**2
            self.largest = np.maximum(self.largest, self.v)
            slower = 1 / max(self.delays) if max(self.delays) > self.delay else 1
            self.theta = self.theta + self.outer_eta * slower * self.m / (np.sqrt(self.largest) + self.epsilon)
            self.gathered, self.delays, self.version = [], [], self.version + 1
        self.pull(worker)


class PlainAce(Twin):
    def begin(self) -> None:
        self.latest: dict[int, Vector] = {}
        self.total = self.zeros()

    def leave(self, worker: int) -> None:
        super().leave(worker)
        self.total = self.total - self.latest.pop(worker, self.zeros())
        self.total = self.total if self.latest else self.zeros()

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        self.total = (self.total - self.latest.get(worker, self.zeros())) + delta
        self.latest[worker] = delta
        workers = np.float32(len(self.latest))
        update = self.total / workers
        self.theta = self.theta + update
        self.pull(worker)
        return Effect(np.full_like(delta, np.float32(1) / workers), update)


class PaperAce(Paper):
    """The mean of the latest gradients, made anew each time."""

    def begin(self) -> None:
        self.latest: dict[int, Vector] = {}

    def leave(self, worker: int) -> None:
        super().leave(worker)
        self.latest.pop(worker, None)

    def take(self, worker: int, g: Vector) -> None:
        self.latest[worker] = g
        self.theta -= ETA * np.mean(list(self.latest.values()), axis=0)
        self.pull(worker)


class PlainOrmo(Twin):
    momentum: float
    buffer: float

    def begin(self) -> None:
        self.u, self.current = self.zeros(), 0
        self.index_of: dict[int, int] = {}

    def pull(self, worker: int) -> None:
        super().pull(worker)
        self.index_of[worker] = self.commits

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single, mu = np.float32, self.momentum
        now, then = math.ceil(self.commits / self.buffer), math.ceil(self.index_of[worker] / self.buffer)
        share = single((1 - mu ** (now - then + 1)) / (1 - mu))
        update = share * delta
        if now > self.current:
            self.u = single(mu) * self.u
            update = self.u + update
        self.current = now
        self.u = self.u + single(mu ** (now - then)) * delta
        self.theta = self.theta + update
        self.commits += 1
        self.pull(worker)
        return Effect(np.full_like(delta, share), update, self.u)


class PaperOrmo(Paper):
    """Momentum SGD from the start, of all gradients in the order of their parameters' versions, K a step."""

    momentum: float
    buffer: float

    def begin(self) -> None:
        self.first, self.steps = self.theta.copy(), [self.zeros()]
        self.index_of: dict[int, int] = {}

    def pull(self, worker: int) -> None:
        super().pull(worker)
        self.index_of[worker] = self.commits

    def take(self, worker: int, g: Vector) -> None:
        while len(self.steps) <= math.ceil((self.commits - 1) / self.buffer):
            self.steps.append(self.zeros())
        self.steps[math.ceil(self.index_of[worker] / self.buffer)] += g
        self.theta, u = self.first.copy(), self.zeros()
        for gradients in self.steps:
            u = self.momentum * u + ETA * gradients
            self.theta -= u
        self.pull(worker)


class PlainRingmasterLmo(PlainRingmaster):
    momentum: float

    def begin(self) -> None:
        super().begin()
        self.m = self.zeros()

    def commit(self, worker: int, delta: NDArray[np.float32]) -> Effect:
        single, update = np.float32, self.zeros()
        is_fresh = self.k - self.k_of[worker] < self.threshold
        if is_fresh:
            self.m = single(self.momentum) * self.m + single(1 - self.momentum) * delta
            update = single(ETA) * np.sign(self.m)
            self.theta = self.theta + update
            self.k += 1
        self.pull(worker)
        return Effect(np.full_like(delta, is_fresh), update, self.m)


class PaperRingmasterLmo(PaperRingmaster):
    """With the oracle of the ball of the maximum norm: the corner that goes down most."""

    momentum: float

    def begin(self) -> None:
        super().begin()
        self.m = self.zeros()

    def take(self, worker: int, g: Vector) -> None:
        k = len(self.iterates) - 1
        if k - self.index[worker] < self.threshold:
            alpha = 1 - self.momentum
            self.m = (1 - alpha) * self.m + alpha * g
            self.theta = self.iterates[k] + ETA * -np.sign(self.m)
            self.iterates.append(self.theta)
        self.pull(worker)


TWINS: dict[str, tuple[type[Twin], type[Paper]]] = {
    "dc-asgd": (PlainDcAsgd, PaperDcAsgd),
    "gap-aware": (PlainGapAware, PaperGapAware),
    "ringmaster": (PlainRingmaster, PaperRingmaster),
    "easgd": (PlainEasgd, PaperEasgd),
    "dana": (PlainDana, PaperDana),
    "delayed-nesterov": (PlainDelayedNesterov, PaperDelayedNesterov),
    "fedbuff": (PlainFedBuff, PaperFedBuff),
    "fadas": (PlainFadas, PaperFadas),
    "ace": (PlainAce, PaperAce),
    "ormo": (PlainOrmo, PaperOrmo),
    "ringmaster-lmo": (PlainRingmasterLmo, PaperRingmasterLmo),
}
