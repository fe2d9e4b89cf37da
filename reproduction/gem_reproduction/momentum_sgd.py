"""Momentum SGD, for figures 5 and 6.

Uses worker 0's batches, first parameters and dropout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from gem_simulator.evaluation import Evaluation
from gem_simulator.settings import SimulationSettings
from gem_simulator.workload import torch_as_it_was
from gem_worker.models import model_for_task
from gem_worker.score import score
from gem_worker.seeds import dropout_seed
from gem_worker.tasks import Task, batch_numbers
from torch import nn
from torch.nn import functional

# The paper's, and GEM's default.
MOMENTUM = 0.9


@dataclass(slots=True)
class Trained:
    """Losses before each step, and evaluations; the last is final."""

    losses: list[float]
    evaluations: list[Evaluation]
    finite: bool


def train(settings: SimulationSettings, task: Task) -> Trained:
    """Train until `settings.steps` or a non-finite loss; a step is one virtual second."""

    def prepare(model: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.eta, momentum=MOMENTUM)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return update

    return train_steps(settings, task, prepare, range(1, settings.steps + 1))


def train_steps(
    settings: SimulationSettings,
    task: Task,
    prepare: Callable[[nn.Module], Callable[[], None]],
    ends: Sequence[float],
    workers: int = 1,
) -> Trained:
    """Train on batches of all workers until `ends`, the steps' virtual times.

    `prepare` returns what applies and clears gradients.
    """
    with torch_as_it_was():
        torch.set_num_threads(1)
        model = model_for_task(task, settings.model, settings.seed)
        update = prepare(model)
        batches = batch_numbers(task.train, settings.batch_size * workers, settings.seed, 0)
        torch.manual_seed(dropout_seed(settings.seed, 0))
        found = Trained([], [], True)
        every = settings.evaluate_every
        for step, end in enumerate(ends, 1):
            inputs, labels = task.train.batch(next(batches)[1])
            model.train()
            loss = functional.cross_entropy(model(inputs), labels)
            found.losses.append(float(loss.detach()))
            found.finite = bool(torch.isfinite(loss))
            if found.finite:
                loss.backward()  # type: ignore[no-untyped-call]
                update()
            before, now = workers * (step - 1), workers * step
            if step == len(ends) or not found.finite or (every and before // every != now // every):
                found.evaluations.append(evaluate_model(model, task, now, end))
            if not found.finite:
                break
        found.finite = found.finite and all(bool(torch.isfinite(one).all()) for one in model.parameters())
        return found


def evaluate_model(model: nn.Module, task: Task, gradients: int, at: float) -> Evaluation:
    """On training and held-out samples."""
    cpu = torch.device("cpu")
    training_loss, _ = score(model, task.train, cpu)
    test_loss, accuracy = score(model, task.test, cpu)
    return Evaluation(gradients, float(at), training_loss, test_loss, accuracy)
