"""What one bad worker costs a run, with and without the server's bound, and how near healthy deltas come to it.

    python -m benchmarks.bad_workers [--tasks digits heavy text] [--workers 4 16] [--seeds 2] [--bounds 10 0]

Workers of about the same speed commit in a random order to rule gem: each computes a gradient at its snapshot, commits
it, and gets the new parameters, as with a real server. The deltas pass through the server's own `DeltaBound`. All
workers are well; or the gradients of one are 100 times too large; or one batch of it has a gradient that is 1 000 times
too large. A row has the accuracy at the end, averaged over the seeds, how many deltas of good workers were scaled down,
and how many times the median of the others the largest of these was.

Tasks: `digits`, an MLP on scikit-learn's digits; `heavy`, a regression with noise of Student's t with 3 degrees of
freedom, and `heavier` with 2, where accuracy is the share of the right signs; `text`, an LSTM on the characters of the
pages in docs. Direction `rms` divides gradients as workers do for AdamW.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from gem_server.state.delta_bound import DeltaBound
from gem_server.state.workers import Worker
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import gem_core
from gem_core.aligned import aligned_copy
from gem_core.norm import sampled_norm

Float32 = NDArray[np.float32]
Bad = Literal["none", "gradients x 100", "one batch x 1000"]
BAD: tuple[Bad, ...] = ("none", "gradients x 100", "one batch x 1000")
PAGES = Path(__file__).resolve().parents[1] / "docs"
# Of direction rms.
BETA2, EPSILON, MOST, RMS_ETA = 0.999, 1e-8, 5.0, 0.002


@dataclass(frozen=True)
class Task:
    """A model, its training loss on a batch, its accuracy, the learning rate, and the commits of all workers."""

    model: nn.Module
    loss: Callable[[torch.Generator], Tensor]
    accuracy: Callable[[], float]
    eta: float
    commits: int


def digits() -> Task:
    """An MLP on the 8 x 8 digits."""
    data = load_digits()
    images, labels = torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def loss(generator: torch.Generator) -> Tensor:
        batch = torch.randint(len(images), (32,), generator=generator)
        return functional.cross_entropy(model(images[batch]), labels[batch])

    return Task(model, loss, lambda: (model(images).argmax(1) == labels).float().mean().item(), 0.1, 800)


def regression(freedom: float) -> Task:
    """An MLP on a function with noise of Student's t."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((4000, 16))
    clean = np.tanh(inputs @ random.standard_normal(16))
    noisy = clean + 0.3 * random.standard_t(freedom, 4000)
    x, y, right = (torch.from_numpy(values.astype(np.float32)) for values in (inputs, noisy, clean))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss(generator: torch.Generator) -> Tensor:
        batch = torch.randint(len(x), (8,), generator=generator)
        return functional.mse_loss(model(x[batch]).squeeze(1), y[batch])

    return Task(model, loss, lambda: ((model(x).squeeze(1) > 0) == (right > 0)).float().mean().item(), 0.02, 1400)


class Lstm(nn.Module):
    """A small model that predicts each next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self._embedding = nn.Embedding(characters, 32)
        self._lstm = nn.LSTM(32, 64, batch_first=True)
        self._head = nn.Linear(64, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of each next character."""
        logits: Tensor = self._head(self._lstm(self._embedding(text))[0])
        return logits


def text() -> Task:
    """An LSTM on the pages in docs."""
    whole = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))[:200_000]
    numbers = {character: number for number, character in enumerate(sorted(set(whole)))}
    data = torch.tensor([numbers[character] for character in whole])
    model = Lstm(len(numbers))

    def batch(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - 33, (size,), generator=generator)
        windows = torch.stack([data[start : start + 33] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    def loss(generator: torch.Generator) -> Tensor:
        inputs, targets = batch(generator, 8)
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def accuracy() -> float:
        inputs, targets = batch(torch.Generator().manual_seed(9), 256)
        return float((model(inputs).argmax(-1) == targets).float().mean())

    return Task(model, loss, accuracy, 0.5, 1100)


TASKS: dict[str, Callable[[], Task]] = {
    "digits": digits,
    "heavy": partial(regression, 3.0),
    "heavier": partial(regression, 2.0),
    "text": text,
}


class Rms:
    """Divides the gradients of one worker by the root of their mean squares."""

    def __init__(self, size: int) -> None:
        self._squares = np.zeros(size, np.float32)
        self._steps = 0

    def __call__(self, gradient: Float32) -> Float32:
        """Return the direction of the gradients as one vector."""
        self._steps += 1
        self._squares += np.float32(1 - BETA2) * (gradient * gradient - self._squares)
        root = np.sqrt(self._squares / (1 - BETA2**self._steps)) + np.float32(EPSILON)
        direction: Float32 = np.clip(gradient / root, -MOST, MOST) / np.float32(3)
        return direction


@dataclass(frozen=True)
class Outcome:
    """Of a run: accuracy; deltas of good workers that were scaled down; the largest, in medians of the others."""

    accuracy: float
    scaled: int
    largest: float


def run(task_name: str, workers: int, seed: int, bad: Bad, factor: float, direction: str) -> Outcome:
    """Simulate one run. `factor` is the setting limits.delta_norm."""
    torch.manual_seed(seed)
    task = TASKS[task_name]()
    eta = task.eta if direction == "gradient" else RMS_ETA
    weights = list(task.model.parameters())
    theta = aligned_copy(nn.utils.parameters_to_vector(weights).detach().numpy())
    rule = gem_core.create_rule("gem")
    states = [rule.new_worker(theta) for _ in range(workers)]
    clock, clocks, made = 0, [0] * workers, [0] * workers
    generators = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(workers)]
    directions = [Rms(theta.size) for _ in range(workers)]
    bound = DeltaBound(factor or np.inf)
    known = [Worker(f"worker-{rank}", rank) for rank in range(workers)]
    scaled, largest = 0, 0.0
    for rank in order(workers, task.commits, seed):
        nn.utils.vector_to_parameters(torch.from_numpy(states[rank].snapshot.copy()), weights)
        task.model.zero_grad()
        loss = task.loss(generators[rank])
        made[rank] += 1
        wrong = _factor(bad, rank, is_half=made[rank] == task.commits // (2 * workers))
        torch.autograd.backward(wrong * loss)
        gradient = torch.cat([one.grad.flatten() for one in weights if one.grad is not None]).numpy()
        if not np.isfinite(gradient).all():
            continue  # as workers do
        delta = aligned_copy(np.float32(-eta) * (directions[rank](gradient) if direction == "rms" else gradient))
        judgement = bound.judge(known[rank], sampled_norm(delta), eta)
        if judgement.factor != 1:
            delta *= np.float32(judgement.factor)
        if wrong == 1:
            scaled += judgement.factor != 1
            largest = max(largest, judgement.excess)
        rule.commit(theta, states[rank], delta, clock - clocks[rank])
        clock += 1
        clocks[rank] = clock
    nn.utils.vector_to_parameters(torch.from_numpy(theta), weights)
    with torch.no_grad():
        return Outcome(task.accuracy(), scaled, largest)


def order(workers: int, commits: int, seed: int) -> Iterator[int]:
    """Ranks in the order of their commits: a step takes 0.8 to 1.2 of a worker's time, which differs as much."""
    random = np.random.default_rng(seed)
    speeds = random.uniform(0.8, 1.2, workers)
    due = speeds * random.uniform(0, 1, workers)
    for _ in range(commits):
        rank = int(np.argmin(due))
        due[rank] += speeds[rank] * random.uniform(0.8, 1.2)
        yield rank


def _factor(bad: Bad, rank: int, *, is_half: bool) -> float:
    """What a worker's gradient is multiplied by; `is_half`: in this step, which is the middle one of its run."""
    if rank or bad == "none":
        return 1.0
    if bad == "gradients x 100":
        return 100.0
    return 1000.0 if is_half else 1.0


def main() -> None:
    """Simulate all runs, and print a table of their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["digits", "heavy", "text"])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16], help="numbers of workers (default 4 16)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind (default 2)")
    parser.add_argument("--bounds", type=float, nargs="+", default=[10.0, 0.0], help="limits.delta_norm (default 10 0)")
    parser.add_argument("--direction", choices=["gradient", "rms"], default="gradient")
    given = parser.parse_args()
    torch.set_num_threads(1)
    headings = ("task", "workers", "bad", "bound", "accuracy", "good deltas scaled", "largest good delta")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for task in given.tasks:
        for workers in given.workers:
            for bad in BAD:
                for factor in given.bounds:
                    runs = [run(task, workers, seed, bad, factor, given.direction) for seed in range(given.seeds)]
                    accuracy = sum(one.accuracy for one in runs) / len(runs)
                    scaled, largest = sum(one.scaled for one in runs), max(one.largest for one in runs)
                    cells = (task, workers, bad, factor or "none", f"{accuracy:.3f}", scaled, f"{largest:.1f}")
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
