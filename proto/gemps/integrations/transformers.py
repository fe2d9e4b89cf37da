"""The callback for `transformers.Trainer` and TRL."""

from typing import Any

from gem_worker import ParameterServer
from torch import nn

from gemps.integrations.loop_worker import ALONE, LoopWorker

try:
    from accelerate.state import AcceleratorState, DistributedType, GradientState
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import has_length
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'GempsCallback needs {error.name}, which is not installed: pip install "transformers[torch]"', name=error.name
    ) from None


class GempsCallback(TrainerCallback):  # type: ignore[misc]
    """Makes a Trainer a worker during `train`: `Trainer(..., callbacks=[GempsCallback()])`.

    The run follows the Trainer's optimizer (`ParameterServer`, "Optimizer"): each of its steps is a commit, or with
    `every=H` each H-th is, of what the model moved. Its learning rate schedule follows the run's progress. The end of
    the run stops the training. The loss reported is the last one logged (`logging_steps`).

    Args:
        settings: arguments of `ParameterServer`.

    Raises:
        ValueError: several devices or processes.
    """

    def __init__(self, **settings: Any) -> None:
        self._worker = LoopWorker(settings)
        self._batches = 0
        self._loss: float | None = None

    @property
    def ps(self) -> ParameterServer | None:
        """None before training."""
        return self._worker.ps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Join, after the Trainer has loaded its checkpoint."""
        kind = AcceleratorState().distributed_type
        if kind is not DistributedType.NO:
            raise ValueError(f"the Trainer runs as {kind.value}, and {ALONE}, without torchrun and accelerate launch")
        if args.n_gpu > 1:
            raise ValueError(f"the Trainer uses {args.n_gpu} GPUs, and {ALONE} and CUDA_VISIBLE_DEVICES with one GPU")
        loader = kwargs["train_dataloader"]
        batches = len(loader) if has_length(loader) else 0
        self._batches, self._loss = 0, None
        # Accelerate's wrapper has no hooks.
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        steps = -(-batches // args.gradient_accumulation_steps)
        self._worker.join_run(kwargs["model"], optimizer, steps, [kwargs["lr_scheduler"]])
        control.should_training_stop |= self._worker.is_finished

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs: Any
    ) -> None:
        """Skip steps after the run's end."""
        if self._worker.is_finished:
            model.zero_grad()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count an accumulated batch."""
        self._batches += 1
        self._worker.check()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check for SIGTERM."""
        self._worker.check()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Exchange."""
        self._worker.count(1, _samples(self._batches + 1, state.train_batch_size or args.train_batch_size))
        self._batches = 0
        self._worker.check()
        self._exchange(control, is_last=control.should_training_stop)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Commit the last steps."""
        if control.should_training_stop:
            self._exchange(control, is_last=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the loss for the next exchange."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave. After an error, which calls no callback, `atexit` or the next `train` does."""
        self._worker.leave("done")

    def _exchange(self, control: TrainerControl, *, is_last: bool) -> None:
        self._worker.exchange(self._loss, is_last=is_last)
        control.should_training_stop |= self._worker.is_finished


def _samples(batches: int, size: int) -> int:
    """An epoch's last batch may be smaller."""
    loader = GradientState().active_dataloader
    is_small = loader is not None and loader.end_of_dataloader and loader.remainder > 0
    return (batches - 1) * size + (int(loader.remainder) if is_small else size)
