"""Synchronous training: a step averages the workers' gradients, then clips.

Muon: spectral direction of the Nesterov momentum for matrices, else Adam.
"""

from collections.abc import Callable

import torch
from gem_simulator.settings import SimulationSettings
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import BETA2, EPSILON, GradientTransform, Plan, spectral_direction
from gem_worker.hidden_matrices import hidden_matrices
from gem_worker.tasks import Task
from torch import Tensor, nn

from gem_reproduction.momentum_sgd import Trained, train_steps
from gem_reproduction.runs import Method
from gem_reproduction.synchronous_time import step_ends

_BETAS = (0.9, BETA2)
_MOMENTUM = 0.95


def train_synchronously(settings: SimulationSettings, task: Task, method: Method) -> Trained:
    """As `momentum_sgd.train`."""

    def prepare(model: nn.Module) -> Callable[[], None]:
        flat = FlatModel(model)
        clip = GradientTransform(flat, Plan(), settings.clip_norm)
        apply = _muon(flat, settings.eta) if method == "synchronous-muon" else _adam(flat, settings.eta)

        def update() -> None:
            flat.collect_gradients()
            clip.clip()
            apply()
            flat.zero_gradients()

        return update

    ends = step_ends(settings, max(1, settings.commits // settings.workers))
    return train_steps(settings, task, prepare, ends, settings.workers)


def _adam(flat: FlatModel, eta: float) -> Callable[[], object]:
    return _adam_of([one.tensor for one in flat.trained], eta)


def _adam_of(parameters: list[Tensor], eta: float) -> Callable[[], object]:
    return torch.optim.Adam(parameters, lr=eta, betas=_BETAS, eps=EPSILON).step


def _muon(flat: FlatModel, eta: float) -> Callable[[], object]:
    numbers = set(hidden_matrices(flat.tensors))
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
