"""Warns about optimizer steps on a served model."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_log = logging.getLogger(__name__)


class OptimizerWatch:
    """Hooks on the process's optimizers until `close`; warns at most once.

    Attributes:
        has_stepped: whether an optimizer has stepped on the model's parameters. The reader resets it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._ours = {id(parameter) for parameter in model.parameters()}
        self.has_stepped = False
        self._told = False
        self._norms: list[float] | None = None
        self._remove: list[Callable[[], None]] = [
            register_optimizer_step_pre_hook(self._before).remove,
            register_optimizer_step_post_hook(self._after).remove,
        ]

    def close(self) -> None:
        """Remove the hooks; idempotent."""
        while self._remove:
            self._remove.pop()()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._told and (parameters := self._found(optimizer)):
            self._norms = _norms(parameters)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = self._found(optimizer)
        self.has_stepped = self.has_stepped or bool(parameters)
        if self._told or not parameters:
            return
        self._told = True
        _log.warning(
            "%s.step() has no effect on the run%s: the server's update rule takes the optimizer's place. Remove "
            "optimizer.step(); the learning rate is the server's --eta, and momentum is the rule's",
            type(optimizer).__name__,
            ", but changes the parameters until the next ps.step()" if _norms(parameters) != self._norms else "",
        )

    def _found(self, optimizer: Optimizer) -> list[torch.Tensor]:
        return [one for group in optimizer.param_groups for one in group["params"] if id(one) in self._ours]


@torch.no_grad()
def _norms(parameters: list[torch.Tensor]) -> list[float] | None:
    if parameters[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return [float(torch.linalg.vector_norm(one)) for one in parameters]
