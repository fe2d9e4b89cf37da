"""The callback for `lightning.Trainer`."""

from contextlib import suppress
from typing import Any

from gem_worker import ParameterServer
from gem_worker.termination import TerminatedError, termination
from torch.optim import Optimizer

from gemps.integrations.loop_worker import ALONE, LoopWorker

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.utilities.data import extract_batch_size
    from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"GempsCallback needs {error.name}, which is not installed: pip install lightning", name=error.name
    ) from None


class GempsCallback(Callback):  # type: ignore[misc]
    """Makes a Trainer a worker during `fit`: `Trainer(..., callbacks=[GempsCallback()])`.

    As for transformers; the loss reported is the last batch's. Also refuses several optimizers.
    """

    def __init__(self, **settings: Any) -> None:
        self._worker = LoopWorker(settings)
        self._steps = 0

    @property
    def ps(self) -> ParameterServer | None:
        """None before training."""
        return self._worker.ps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join, after the Trainer has loaded its checkpoint."""
        if not isinstance(trainer.strategy, SingleDeviceStrategy):
            kind = type(trainer.strategy).__name__
            raise ValueError(f'the Trainer has a {kind}, and {ALONE}, with Trainer(devices=1, strategy="auto")')
        if len(trainer.optimizers) != 1:
            raise ValueError(f"the module has {len(trainer.optimizers)} optimizers, not 1: merge them as param_groups")
        batches = trainer.num_training_batches
        batches = int(batches) if batches != float("inf") else 0
        self._steps = trainer.global_step
        self._worker.join_run(
            pl_module,
            trainer.optimizers[0],
            -(-batches // trainer.accumulate_grad_batches),
            [config.scheduler for config in trainer.lr_scheduler_configs],
        )
        trainer.should_stop |= self._worker.is_finished

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Skip steps after the run's end."""
        if self._worker.is_finished:
            optimizer.zero_grad()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Exchange."""
        self._worker.count(trainer.global_step - self._steps, _samples_in(batch))
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        # The Trainer has divided it.
        self._worker.exchange(None if loss is None else loss * trainer.accumulate_grad_batches)
        trainer.should_stop |= self._worker.is_finished

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Commit the last steps, and leave."""
        self._worker.exchange(None, is_last=True)
        self._worker.leave("done")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave; SIGTERM: commit first."""
        if not isinstance(exception, SIGTERMException):
            self._worker.leave(f"error: {type(exception).__name__}")
            return
        with suppress(TerminatedError), termination.begun():
            self._worker.terminate()
        exception.code = TerminatedError().code


def _samples_in(batch: Any) -> int:
    try:
        return int(extract_batch_size(batch))
    except MisconfigurationException:
        return 0  # unknown: a class of the user's
