"""Synchronous training: a step averages one gradient of each worker, then clips.

Muon: spectral direction of the Nesterov momentum for matrices, else Adam.
"""

from collections.abc import Callable

import torch
from gem_simulator.settings import SimulationSettings
from gem_simulator.workload import torch_as_it_was
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import BETA2, EPSILON, GradientTransform, matrices_of, spectral_direction
from gem_worker.models import model_for_task
from gem_worker.seeds import dropout_seed
from gem_worker.tasks import Task, batch_numbers
from torch import Tensor
from torch.nn import functional

from gem_reproduction.momentum_sgd import Trained, evaluate_model
from gem_reproduction.runs import Method
from gem_reproduction.synchronous_time import step_ends

_BETAS = (0.9, BETA2)
_MOMENTUM = 0.95


def train_synchronously(settings: SimulationSettings, task: Task, method: Method) -> Trained:
    """As `momentum_sgd.train`."""
    with torch_as_it_was():
        torch.set_num_threads(1)
        model = model_for_task(task, settings.model, settings.seed)
        flat = FlatModel(model)
        clip = GradientTransform(flat, "gradient", settings.clip_norm)
        state = clip.new_state()
        update = _muon(flat, settings.eta) if method == "synchronous-muon" else _adam(flat, settings.eta)
        batches = batch_numbers(task.train, settings.batch_size * settings.workers, settings.seed, 0)
        torch.manual_seed(dropout_seed(settings.seed, 0))
        steps = max(1, settings.commits // settings.workers)
        ends = step_ends(settings, steps)
        found = Trained([], [], True)
        for step in range(1, steps + 1):
            inputs, labels = task.train.batch(next(batches)[1])
            model.train()
            loss = functional.cross_entropy(model(inputs), labels)
            found.losses.append(float(loss.detach()))
            found.finite = bool(torch.isfinite(loss))
            if not found.finite:
                break
            loss.backward()  # type: ignore[no-untyped-call]
            flat.collect_gradients()
            clip.apply(state)
            update()
            flat.zero_gradients()
            before, now = (settings.workers * count for count in (step - 1, step))
            every = settings.evaluate_every
            if step == steps or (every and before // every != now // every):
                found.evaluations.append(evaluate_model(model, task, now, ends[step - 1]))
        if not found.finite:
            done = len(found.losses)
            found.evaluations.append(evaluate_model(model, task, settings.workers * done, ends[done - 1]))
        found.finite = found.finite and all(bool(torch.isfinite(one).all()) for one in model.parameters())
        return found


def _adam(flat: FlatModel, eta: float) -> Callable[[], object]:
    return _adam_of([one.tensor for one in flat.trained], eta)


def _adam_of(parameters: list[Tensor], eta: float) -> Callable[[], object]:
    return torch.optim.Adam(parameters, lr=eta, betas=_BETAS, eps=EPSILON).step


def _muon(flat: FlatModel, eta: float) -> Callable[[], object]:
    numbers = set(matrices_of(flat))
    matrices = [one for number, one in enumerate(flat.trained) if number in numbers]
    moments = [torch.zeros_like(one.gradient) for one in matrices]
    adam = _adam_of([one.tensor for number, one in enumerate(flat.trained) if number not in numbers], eta)

    @torch.no_grad()
    def update() -> None:
        adam()
        for one, moment in zip(matrices, moments, strict=True):
            moment.mul_(_MOMENTUM).add_(one.gradient)
            nesterov = torch.add(one.gradient, moment, alpha=_MOMENTUM)
            one.values.sub_(spectral_direction(nesterov), alpha=eta)

    return update
