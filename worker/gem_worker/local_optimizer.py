"""Steps of a script's own optimizer between two commits.

A commit is w - s, the parameters minus the snapshot. What the wire type rounds away is added to the next commit
(Karimireddy et al., 2019, arXiv 1901.09847).
"""

import inspect
import logging
from typing import Literal

import torch
from torch import Tensor, nn

from gem_core.registry import GRADIENT_RULES
from gem_worker.client import RunSettings
from gem_worker.errors import UnsupportedOptimizerError
from gem_worker.flat_model import FlatModel
from gem_worker.loss_scaler import as_scaler
from gem_worker.optimizer_recipe import number_of
from gem_worker.transfer import Staged, Transfer

_log = logging.getLogger(__name__)

Every = int | Literal["auto"]
# With every="auto": the steps of a worker with the median speed, and the most steps of any worker.
USUAL_STEPS = 8
MOST_STEPS = 32
# After this number of steps without an exchange the worker warns, unless `every` is larger.
LONELY_STEPS = 100
# Largest number of parameters that a warning names.
NAMES_SHOWN = 5


class LocalOptimizer:
    """Runs a script's optimizer. `calls` of `step`, and `steps` of the optimizer, count from the last exchange."""

    def __init__(self, optimizer: torch.optim.Optimizer, every: Every, model: nn.Module) -> None:
        _refuse_unusable(optimizer, model)
        if every != "auto" and (not isinstance(every, int) or every < 1):
            raise ValueError(f'every={every!r}: commit every H-th step, with H of 1 or more, or "auto"')
        self.is_auto = every == "auto"
        self.every = USUAL_STEPS if every == "auto" else every
        self.calls = self.steps = 0
        self._is_unscaled = False
        self._rate = 0.0
        self._suitable: RunSettings | None = None
        self.optimizer = self._optimizer = optimizer
        self._model = model
        self._flat: FlatModel
        self._snapshot: Tensor
        self._has_checked_groups = False
        self.is_stepping = False
        self._hooks = [optimizer.register_step_pre_hook(self._begin), optimizer.register_step_post_hook(self._count)]

    @property
    def rate(self) -> float:
        """Learning rate of the first group. One that is on a device is read only at exchanges."""
        rate = self._optimizer.param_groups[0].get("lr")
        return self._rate if isinstance(rate, Tensor) and rate.device.type != "cpu" else number_of(rate)

    @property
    def has_rest(self) -> bool:
        """Whether the end of the block has something to commit."""
        return bool(self.steps) and not self.is_stepping

    def refuse_unsuitable(self, run: RunSettings) -> None:
        """Raise UnsupportedOptimizerError for settings that need gradients, and warn of unsuitable ones."""
        if run is not self._suitable:
            _refuse_run(run, is_auto=self.is_auto)
            self._suitable = run

    def attach(self, flat: FlatModel) -> None:
        """Copy the parameters of `flat` as the snapshot, and let the model have gradients of its own again."""
        self._flat = flat
        self._snapshot = torch.empty(flat.layout.parameter_count, dtype=torch.float32, device=flat.device)
        self._model.zero_grad()
        flat.read_parameters(self._snapshot)
        self._read_rate()

    def step(self, scaler: object) -> bool:
        """Run the optimizer's step. Returns whether the worker should exchange now."""
        if scaler is None:
            self._optimizer.step()
        else:
            as_scaler(scaler).step(self._optimizer)
            as_scaler(scaler).update()
        self._is_unscaled = False
        self._model.zero_grad()
        self._optimizer.zero_grad()  # parameters outside the model
        self.calls += 1
        return self.calls >= self.every

    def unscale(self, scaler: object) -> None:
        """Unscale the gradients."""
        if scaler is not None and not self._is_unscaled:
            as_scaler(scaler).unscale_(self._optimizer)
            self._is_unscaled = True

    def stage(self, transfer: Transfer, loss: Tensor | float | None, shared: memoryview | None) -> Staged:
        """Stage w - s."""
        self._flat.collect_parameters()
        if not self._has_checked_groups:
            self._has_checked_groups = True
            self.warn_of_untrained(self._flat, self._snapshot)
        staged = transfer.stage(-1.0, loss, shared, since=self._snapshot)
        self._read_rate()
        return staged

    def installed(self, remainder: Tensor | None) -> None:
        """Copy the parameters as the snapshot, minus `remainder`, which the next commit then contains."""
        self.restart()
        if remainder is None:
            self._flat.read_parameters(self._snapshot)
        else:
            self._flat.read_movement(remainder, self._snapshot)

    def restart(self) -> None:
        """Set both counts to 0, and keep the snapshot."""
        self.calls = self.steps = 0

    def adapt(self, relative_speed: float) -> None:
        """Choose `every`, if the speed is known."""
        if self.is_auto and relative_speed > 0:
            self.every = round(min(max(USUAL_STEPS * relative_speed, 1), MOST_STEPS))

    @torch.no_grad()
    def repair(self) -> None:
        """Zero non-finite values of the state."""
        for state in self._optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor) and value.is_floating_point():
                    value.nan_to_num_(0.0, 0.0, 0.0)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def warn_of_untrained(self, flat: FlatModel, since: Tensor | None = None) -> None:
        """Warn of parameters that are in no group, unless something else has moved them since the snapshot `since`."""
        held = {id(one) for group in self._optimizer.param_groups for one in group["params"]}
        missing = [
            one.name
            for one in flat.trained
            if id(one.tensor) not in held and (since is None or not flat.has_moved(one, since))
        ]
        if missing:
            more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
            _log.warning(
                "%s holds %d of the model's %d parameter tensors; no worker trains the others: %s%s. Pass all of "
                "model.parameters() to the optimizer, or freeze the others with requires_grad_(False) before "
                "ParameterServer(...), with the same values in every worker: load them, or seed PyTorch before the "
                "model is built",
                type(self._optimizer).__name__,
                len(flat.trained) - len(missing),
                len(flat.trained),
                ", ".join(missing[:NAMES_SHOWN]),
                more,
            )

    def _read_rate(self) -> None:
        self._rate = number_of(self._optimizer.param_groups[0].get("lr"))

    def _begin(self, *_: object) -> None:
        self.is_stepping = True

    def _count(self, *_: object) -> None:
        self.is_stepping = False
        self.steps += 1
        if self.steps == max(LONELY_STEPS, self.every + 1):
            _log.warning(
                "%d steps of %s since the last exchange: this worker trains alone. Call ps.step(loss) in place of "
                "optimizer.step(), or ps.exchange(loss) after it",
                self.steps,
                type(self._optimizer).__name__,
            )


def _refuse_run(run: RunSettings, *, is_auto: bool) -> None:
    if is_auto and run.epochs:
        raise UnsupportedOptimizerError(
            f'every="auto" has no number of commits in an epoch: pass every={USUAL_STEPS}, or give the server --steps '
            "or --commits instead of --epochs"
        )
    if run.local_steps > 1:
        raise UnsupportedOptimizerError(
            f"rule {run.rule} makes {run.local_steps} local steps itself: set its local_steps (easgd: period) to 1; "
            f"every={run.local_steps} takes their place"
        )
    settings = {
        f"--rule {run.rule}": run.rule in GRADIENT_RULES,
        f"--direction {run.direction}": run.direction != "gradient",
        "--clip-norm": run.clip_norm > 0,
        "--weight-decay": run.rule_settings.get("weight_decay", 0) > 0,
    }
    found = [setting for setting, is_set in settings.items() if is_set]
    if found:
        raise UnsupportedOptimizerError(
            f"commits of optimizer= have no gradients, and {' and '.join(found)} cannot work without: start the "
            "server without, and decay and clip in the script; or leave out optimizer="
        )
    if run.recipe is None and run.rule == "gem" and (run.min_workers > 1 or run.rule_settings.get("momentum", 0) > 0):
        _log.warning(
            "the server names rule gem, which scales what an optimizer moved by its momentum, and does not average "
            "workers: start the server with --rule auto, which follows the optimizer"
        )


def _refuse_unusable(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
    name = type(optimizer).__name__
    if isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):  # Accelerate's
        raise UnsupportedOptimizerError(
            f"{name} wraps an optimizer: pass that, its .optimizer, and call exchange() after the wrapper's step()"
        )
    # The class is asked for its `step`, because schedulers wrap that of the object.
    _, *arguments = inspect.signature(type(optimizer).step).parameters.values()
    if any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in arguments):
        raise UnsupportedOptimizerError(
            f"{name}.step needs a closure, whose line search cannot continue from replaced parameters: choose another "
            "optimizer, such as AdamW"
        )
    trained = {id(one) for one in model.parameters() if one.requires_grad}
    if not any(id(one) in trained for group in optimizer.param_groups for one in group["params"]):
        raise UnsupportedOptimizerError(
            f"{name} has no trained parameter of the model: create it from model.parameters()"
        )
