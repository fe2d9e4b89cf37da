"""Momentum SGD in one process, with which figures 5 and 6 compare.

It uses the batches, the first parameters and the dropout of worker 0.
"""

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

# The momentum of the paper, which is also GEM's default.
MOMENTUM = 0.9


@dataclass(slots=True)
class Trained:
    """The loss before each step, and the evaluations, of which the last is at the end."""

    losses: list[float]
    evaluations: list[Evaluation]
    finite: bool


def train(settings: SimulationSettings, task: Task) -> Trained:
    """Train until `settings.steps` or a non-finite loss; a step is one virtual second."""
    with torch_as_it_was():
        torch.set_num_threads(1)
        model = model_for_task(task, settings.model, settings.seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.eta, momentum=MOMENTUM)
        batches = batch_numbers(task.train, settings.batch_size, settings.seed, 0)
        torch.manual_seed(dropout_seed(settings.seed, 0))
        found = Trained([], [], True)
        every = settings.evaluate_every
        for step in range(1, settings.steps + 1):
            inputs, labels = task.train.batch(next(batches)[1])
            model.train()
            loss = functional.cross_entropy(model(inputs), labels)
            found.losses.append(float(loss.detach()))
            found.finite = bool(torch.isfinite(loss))
            if found.finite:
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            if step == settings.steps or not found.finite or (every and step % every == 0):
                found.evaluations.append(_evaluate(model, task, step))
            if not found.finite:
                break
        found.finite = found.finite and all(bool(torch.isfinite(one).all()) for one in model.parameters())
        return found


def _evaluate(model: nn.Module, task: Task, step: int) -> Evaluation:
    """Evaluate the model on training and on held-out samples."""
    cpu = torch.device("cpu")
    training_loss, _ = score(model, task.train, cpu)
    test_loss, accuracy = score(model, task.test, cpu)
    return Evaluation(step, float(step), training_loss, test_loss, accuracy)
