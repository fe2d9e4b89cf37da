"""`ParameterServer`, which makes a training script a worker of a run."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gem_core import features
from gem_core.features import direction_feature
from gem_core.recipe import Recipe, RecipeKind
from gem_core.registry import DIRECTIONS
from gem_worker.adapter import describe_adapter
from gem_worker.batch_watch import BatchWatch
from gem_worker.client import (
    NO_STEPS,
    Client,
    ClientError,
    ClientEvent,
    ClientSettings,
    FinishedBeforeError,
    Membership,
    NotInitializedError,
    RunFinishedError,
    RunSettings,
    RunState,
    StepCount,
    Verdict,
    Version,
)
from gem_worker.client.engine import default_worker_name
from gem_worker.client.events import log_event
from gem_worker.errors import (
    MAX_IGNORED_ENDS,
    MAX_SKIPPED_IN_A_ROW,
    DivergedError,
    IgnoredEndError,
    UnsupportedModelError,
    UnsupportedOptimizerError,
)
from gem_worker.exit_status import end_with_status
from gem_worker.flat_model import FlatModel
from gem_worker.followed_schedule import (
    FollowedSchedule,
    Position,
    Schedulers,
    UnfollowedSchedule,
    as_schedulers,
    sets_rates_of,
)
from gem_worker.frozen_watch import FrozenWatch, warn_of_own_values
from gem_worker.gradient_transform import GradientTransform, Plan, TransformState
from gem_worker.gradient_watch import GradientWatch
from gem_worker.local_optimizer import Every, LocalOptimizer
from gem_worker.local_steps import LocalState, LocalSteps
from gem_worker.loss_scaler import LossScaler
from gem_worker.model_tensors import ScriptTensors, inspect_model
from gem_worker.optimizer_recipe import choose_recipe, keep_first_rates
from gem_worker.optimizer_watch import OptimizerWatch
from gem_worker.settings import NetworkName, WireName
from gem_worker.termination import COMMIT_SECONDS, TerminatedError, termination
from gem_worker.transfer import Staged, Transfer
from gem_worker.translated_optimizer import TranslatedOptimizer
from gem_worker.warning_file import hand_over_warnings
from gem_worker.weight_watch import NAMED_RULE, WeightWatch
from gem_worker.wire_choice import WireChoice, offer

_log = logging.getLogger(__name__)

# What this worker does with gradients (session.proto).
FEATURES = (
    features.LOCAL_STEPS,
    features.SCALED_LOCAL_STEPS,
    features.CLIP_NORM,
    features.RECIPE,
    *(direction_feature(one) for one in DIRECTIONS if one != "gradient"),
)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of one step.

    Attributes:
        applied: False if the delta was skipped, or dropped because the server was restarted, or refused because the run
            was finished before.
        skipped: whether the gradient was not finite, so that nothing was sent.
        version: the version of the parameters that the model has now.
        loss: None if it was not given, or is not finite.
        compute_seconds: time since the previous step, including data loading.
        copy_seconds: time of copies and casts. CUDA's copy to the device counts in the next step.
        exchange_seconds: time from the first byte sent to the last byte received.
        local: whether this step made no commit. Then only version, samples and eta are set.
    """

    applied: bool
    skipped: bool
    verdict: Verdict | None
    version: Version | None
    loss: float | None
    samples: int
    eta: float
    compute_seconds: float
    copy_seconds: float
    exchange_seconds: float
    local: bool = False


class ParameterServer:
    """Makes `model` a worker of a run.

        with ParameterServer("localhost:50051", model) as ps:  # joins; uploads or installs parameters
            for inputs, labels in loader:
                loss = criterion(model(inputs), labels)
                loss.backward()
                ps.step(loss)  # commits -eta * gradient, installs fresh parameters, zeroes the gradients

    **The end of the run.** The step that spends the budget returns its report as every other step does. Then `finished`
    is true and the model holds the run's newest parameters, so the code behind `step` in the loop (an evaluation, a
    checkpoint) still runs. The next call of `step` or `exchange` raises `RunFinishedError`, which the `with` block
    absorbs; what the loop computed in between is discarded. To compute nothing in vain, leave the loop when
    `ps.finished` is true. If other workers spend the run's budget first, the server refuses this worker's commit: that
    step returns a report with `applied=False`, and the rest is the same.

    On entry, the parameters become views of flat buffers. Move, convert, freeze and tie them before.

    **SIGTERM**, or the end of the terminal (SIGHUP), ends the block and the script with exit code 0, unless the script
    handles or ignores it.

    **Exit status.** A refusal that is final (`ClientError.is_final`: another model, a token, a role) and that the
    script does not catch ends it with exit status 2 after the traceback, so that no supervisor starts it again. For
    this, `sys.excepthook` is wrapped, unless the session is interactive.

    **DataLoader workers** may be forked in the block, but must not use this object (docs/training-scripts.md).

    **Mixed precision.** After `scaler.scale(loss).backward()`, `ps.step(loss, scaler=scaler)` unscales, skips
    non-finite gradients and updates the scaler. Before clipping call `ps.unscale_(scaler)`.

    **Gradients.** Several backward passes accumulate, and a parameter without a gradient has the gradient 0. With
    `--local-steps` N, every N-th call and the end of the `with` block commit. In between, the model has parameters of
    this worker's own.

    **Changes by the script.** What the script itself changes in the parameters between steps is lost with the next
    reply, unless commits are what an optimizer moved; one warning names the tensor (docs/training-scripts.md,
    "Constraints and other changes of weights").

    **Optimizer.** If an optimizer is given, its class and parameter groups become the run's recipe (docs/rules.md).
    Adam, AdamW, NAdam, RAdam, SGD and Muon are translated: a commit has gradients, scaled as the optimizer scales them,
    at its present learning rate. The server's rule applies the momentum or, where matrices are orthogonalised, the
    worker does. With any other optimizer, with `every`, and in runs whose server names its rule, `step` runs the
    optimizer itself, and every H-th call commits the parameters' movement since the last exchange; the end of the
    `with` block commits the rest. `recipe_text` says what this worker does. `optimizer.state_dict()` saves and resumes
    both.

    **Schedules.** With `scheduler`, the script's calls of `scheduler.step()` follow the run's progress and not this
    worker's own steps. Without it, a schedule counts this worker's steps. A script that computes its own learning rate
    can use `progress`.

    Args:
        address: the server's HOST:PORT. Default: GEMPS_SERVER.
        model: a model of the same architecture in every worker.
        name: a name that no other worker has. It determines the rank. Default: GEMPS_WORKER_NAME, or the name by the
            engine (Slurm, torchrun, Indexed Job), or host name and process id.
        optimizer: an optimizer of the model's parameters.
        scheduler: a scheduler of `optimizer` from torch.optim.lr_scheduler, or a list of them, but no
            ReduceLROnPlateau.
        every: optimizer steps between two exchanges (H). "auto" chooses 8 times the worker's speed divided by the
            median speed, from 1 to 32.
        steps_per_epoch: batches in an epoch. Required for budgets in epochs.
        delta_wire: "float32", "bfloat16", "int4" or "sparse" (docs/deploy.md, "Capacity"). Default: GEMPS_DELTA_WIRE,
            or what `network` chooses.
        parameter_wire: the same for parameters, where "int4" and "sparse" are differences. Default:
            GEMPS_PARAMETER_WIRE, or what `network` chooses.
        network: what chooses wire types that are not named. With "auto", the first exchanges decide whether narrow ones
            are needed (docs/deploy.md, "Capacity"); "fast" is float32 and "slow" is int4. Default: GEMPS_NETWORK, or
            "auto".
        keep_local: tensors that do not train and that the script changes itself, such as a target network. They stay
            in this worker. Names as in `model.state_dict()`, or names of modules, or either with wildcards (fnmatch).
        send_frozen: tensors of the same kind that travel with each commit as BUFFERs do, so that the run has the values
            of the newest commit.
        run: the name of the run that this worker belongs to. A server whose run has another name refuses it. Default:
            GEMPS_RUN, or any run.
        on_join: a function that is called before parameters become views. It may move or initialise the model.
        device: the name of the device that the server's status shows.
        on_event: a function that gets events of the connection.
        client_settings: settings of the connection. Default: from the environment, `GEMPS_CLIENT_...`.
        overlap: no longer supported; use local steps.

    Raises:
        UnsupportedModelError, UnsupportedOptimizerError, ServerUnavailableError, ServerRefusedError: on entering.
        FinishedBeforeError: on entering, if the run was finished before and this worker has no part in it: its name has
            committed nothing there, and it does not name that run.
    """

    def __init__(
        self,
        address: str | None = None,
        model: nn.Module | None = None,
        *,
        optimizer: Optimizer | None = None,
        scheduler: Schedulers | None = None,
        every: Every = 1,
        name: str | None = None,
        steps_per_epoch: int = 0,
        delta_wire: WireName | None = None,
        parameter_wire: WireName | None = None,
        network: NetworkName | None = None,
        keep_local: Sequence[str] = (),
        send_frozen: Sequence[str] = (),
        run: str | None = None,
        on_join: Callable[[Membership], None] | None = None,
        device: str | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        client_settings: ClientSettings | None = None,
        overlap: Literal[False] = False,
    ) -> None:
        if overlap:
            raise TypeError(
                "overlap is gone: leave it out. On slow networks let the run have local steps (gemps serve "
                "--local-steps 4, or gemps.serve(local_steps=4)), or give this worker narrower wire types"
            )
        address = _address(address)
        if not isinstance(model, nn.Module):
            raise TypeError(
                f'the model is {type(model).__name__}, not a torch.nn.Module: ParameterServer("HOST:PORT", model)'
            )
        self._schedulers = as_schedulers(scheduler)
        _check_optimizer(optimizer, every, self._schedulers)
        hand_over_warnings()
        end_with_status()
        self._optimizer = None if optimizer is None else LocalOptimizer(optimizer, every, model)
        self.model = model
        client_settings = client_settings or ClientSettings.from_environment()
        self._on_join = on_join
        self._adapter = b""
        self._script_tensors = ScriptTensors(_names("keep_local", keep_local), _names("send_frozen", send_frozen))
        # No hashes yet: frozen tensors may still change, and join() hashes them.
        layout, tensors = inspect_model(model, self._script_tensors, hashes=False)
        offered = offer(delta_wire, parameter_wire, network)
        self._on_event = on_event or log_event
        self._choice = None if optimizer is None else choose_recipe(optimizer, model, tensors, every=every)
        if optimizer is not None:
            keep_first_rates(optimizer)
        self._run = os.environ.get("GEMPS_RUN", "") if run is None else run
        self._name = name or os.environ.get("GEMPS_WORKER_NAME") or default_worker_name()
        self._client = Client(
            address,
            worker_name=self._name,
            layout=layout,
            device=device or str(tensors[0].tensor.device),
            steps_per_epoch=-(-steps_per_epoch // self.every),
            delta_wire_types=offered.deltas,
            parameter_wire_types=offered.parameters,
            features=FEATURES,
            recipe=None if self._choice is None else self._choice.recipe,
            run=self._run,
            settings=client_settings,
            on_event=on_event,
        )
        self._may_choose_wire_types = offered.is_open
        self._wire_choice: WireChoice | None = None
        self._joined: tuple[FlatModel, Transfer, LossScaler] | None = None
        # Set instead of `_optimizer` in a run that follows the recipe of `optimizer`, unless it makes its own steps.
        self._translated: TranslatedOptimizer | None = None
        self._followed: list[FollowedSchedule] = []
        self._unfollowed = None if optimizer is None or self._schedulers else UnfollowedSchedule(optimizer)
        self._progress = 0.0
        self._exchanges = 0
        # `_optimizer_watch` and `_weight_watch` are None when commits are what an optimizer moved, because these
        # contain every change of the parameters.
        self._optimizer_watch: OptimizerWatch | None = None
        self._frozen_watch = FrozenWatch(())
        self._gradient_watch: GradientWatch
        self._batch_watch: BatchWatch | None = None
        self._weight_watch: WeightWatch | None = None
        self._local: LocalSteps
        self._local_state: LocalState
        self._transform: GradientTransform
        self._transform_state: TransformState
        self._local_samples = 0
        self._version: Version | None = None
        self._finished = False
        self._raised_ends = 0
        self._can_restore = True
        self._until_exit = contextlib.ExitStack()
        self._skipped_in_a_row = 0
        self.applied_steps = 0
        self.skipped_steps = 0
        self.last_report: StepReport | None = None

    def join(self) -> None:
        """Join the run; waits for the server."""
        try:
            inspected = inspect_model(self.model, self._script_tensors)
            layout = inspected[0]
            with termination.held(0.0, self._client.give_up):
                membership = self._client.join(layout)
            self._refuse_finished_run_of_others(membership)
            if self._on_join is not None:
                self._on_join(membership)
                inspected = inspect_model(self.model, self._script_tensors)
                difference = layout.first_difference(inspected[0])
                if difference is not None:
                    raise UnsupportedModelError(f"the model's layout changed while it joined: {difference}")
            warn_of_own_values(layout, membership.changed_frozen)
            self._frozen_watch = FrozenWatch(inspected[1])
            self._adapter = describe_adapter(self.model, inspected[1])
            flat = FlatModel(self.model, inspected)
            trained = [one.tensor for one in flat.trained]
            run = membership.run_settings
            if self._optimizer is not None:
                self._optimizer.refuse_unsuitable(run)
                _tell(self.recipe_text)
            translation = run.recipe if run.recipe is not None and run.recipe.kind is not RecipeKind.MOVEMENT else None
            self._gradient_watch = GradientWatch(
                trained, has_optimizer=self._optimizer is not None and translation is None
            )
            self._transform = GradientTransform(flat, Plan.of_direction(flat, run.direction), run.clip_norm)
            self._transform_state = self._transform.new_state()
            wire_types = membership.delta_wire_type, membership.parameter_wire_type.of_whole
            transfer = Transfer(flat, *wire_types)
            with termination.held(0.0, self._client.give_up):
                self._bring_parameters(transfer, has_parameters=membership.has_parameters)
            self._finished = self._client.run_state is RunState.FINISHED  # the first step() raises
            self._local = LocalSteps(flat, run.worker_step)
            self._local_state = self._local.new_state()
            self._joined = flat, transfer, LossScaler(flat)
            if self._may_choose_wire_types:
                self._wire_choice = WireChoice(self._client, transfer, membership, flat.layout.parameter_count)
            self._batch_watch = BatchWatch(self.model)
            self._follow(membership)
            if translation is not None and self._optimizer is not None:
                self._translate(self._optimizer, translation, flat, transfer)
            elif self._optimizer is not None:
                self._optimizer.attach(flat)
            else:
                self._optimizer_watch = OptimizerWatch(self.model)
                self._weight_watch = WeightWatch(flat, transfer)
        except BaseException as error:
            self.close(_reason(error))
            raise

    def _refuse_finished_run_of_others(self, membership: Membership) -> None:
        """Raise FinishedBeforeError if the run is finished and this worker has no part in it."""
        names_it = bool(self._run) and self._run == membership.run_name
        if membership.run_state is not RunState.FINISHED or membership.commits != 0 or names_it:
            return
        run = f"the run {membership.run_name!r}" if membership.run_name else "the run"
        raise FinishedBeforeError(
            f"{run} (id {membership.run_id}) at {self._client.address} was finished before worker {self._name} came to "
            "it, so this worker has not trained: give it the address of another run's server, or start a new server "
            "(with another --data-dir); if the worker belongs to this run, name the run at the server and here (--run, "
            "GEMPS_RUN)"
        )

    def _translate(self, own: LocalOptimizer, recipe: Recipe, flat: FlatModel, transfer: Transfer) -> None:
        """Commit gradients by the run's recipe from now on, instead of the optimizer's own steps."""
        own.warn_of_untrained(flat)
        own.close()
        self._optimizer = None
        self._translated = TranslatedOptimizer(own.optimizer, recipe, flat, self._begin_step)
        self._weight_watch = WeightWatch(flat, transfer, way_out=NAMED_RULE)

    def _follow(self, membership: Membership) -> None:
        self._progress = membership.progress
        self._followed = [FollowedSchedule(one, self._position) for one in self._schedulers]

    def _position(self) -> Position:
        """Return how far the run and this worker are. Steps that were not exchanged yet count as a part of a commit."""
        made = 0.0
        if self._translated is not None:
            made = float(self._translated.is_pending)
        elif self._optimizer is not None:
            made = self._optimizer.steps / self._optimizer.every
        return Position(self._progress + made, self._exchanges + made)

    def _begin_step(self) -> bool:
        """Check the gradients before they are collected. Returns False if the run is over."""
        if self._gradient_watch.suspects:
            self._gradient_watch.begin_step()
        return not self._finished

    def step(self, loss: Tensor | float | None = None, samples: int = 0, *, scaler: object = None) -> StepReport:
        """Commit -eta * gradient, install the fresh parameters, zero the gradients.

        `loss` is scalar and unscaled.

        If this step ends the run, or finds that it has ended, it returns normally and `finished` is true from then on.

        Raises:
            RunFinishedError: an earlier step returned with `finished`, or the run was finished when this worker joined.
                Nothing was committed, and the model holds the run's newest parameters.
            SystemExit: the script caught three of these errors and called again. The exit code is 0, and the `with`
                block absorbs it.
            DivergedError: 100 consecutive gradients were not finite.
            UnsupportedModelError: the model changed since joining.
            ServerUnavailableError, ServerRefusedError: from the connection.
        """
        with self._committing():
            return self._step(loss, samples, scaler)

    def _step(self, loss: Tensor | float | None, samples: int, scaler: object) -> StepReport:
        flat, _, scaling = self._require_joined()
        self._check_running()
        self._frozen_watch.count_step()
        if self._optimizer is not None:
            if self._optimizer.step(scaler):
                return self.exchange(loss, samples)
            self._local_samples += samples
            rate = self._optimizer.rate
            return StepReport(False, False, None, self._version, None, samples, rate, 0.0, 0.0, 0.0, local=True)
        if self._translated is not None:
            self._translated.run(scaler)
            return self._commit_translated(self._translated, loss, samples)
        self._begin_step()
        flat.collect_gradients()
        self._compare_weights()
        report = self._step_with_gradients(scaling, loss, samples, scaler)
        if self._weight_watch is not None:
            self._weight_watch.remember()
        return report

    def _compare_weights(self) -> None:
        is_explained = False
        if self._optimizer_watch is not None:
            is_explained, self._optimizer_watch.has_stepped = self._optimizer_watch.has_stepped, False
        if self._weight_watch is not None:
            self._weight_watch.compare(is_installed=not self._local.taken, is_explained=is_explained)

    def _step_with_gradients(
        self, scaling: LossScaler, loss: Tensor | float | None, samples: int, scaler: object
    ) -> StepReport:
        scaling.prepare(scaler)
        self._transform.clip()
        local_steps = self._local.accumulate(self.eta, self._local_state)
        if not local_steps:
            scaling.update(scaler)
            self._local_samples += samples
            return StepReport(False, False, None, self._version, None, samples, self.eta, 0.0, 0.0, 0.0, local=True)
        return self._commit_gradients(loss, samples, scaler, local_steps)

    def _commit_gradients(
        self, loss: Tensor | float | None, samples: int, scaler: object, local_steps: int
    ) -> StepReport:
        flat, transfer, scaling = self._require_joined()
        samples, self._local_samples = samples + self._local_samples, 0
        self._transform.direct(self._transform_state)
        transfer.clock.computed()
        try:
            eta = self._client.next_eta
            staged = transfer.stage(eta, loss, self._client.shared_delta)
            if staged.usable:
                steps = StepCount(local_steps, leaves=local_steps < self.run_settings.local_steps)
                report = self._commit(transfer, staged, samples, eta, steps if self._local.enabled else NO_STEPS)
            else:
                report = self._skip(transfer, staged.loss, samples, eta)
        finally:
            flat.zero_gradients()
            scaling.update(scaler)
        self._count_skipped(staged)
        self._finished |= self._client.run_state is RunState.FINISHED
        self._choose_wire_types(report)
        return report

    def _commit_translated(
        self, translated: TranslatedOptimizer, loss: Tensor | float | None, samples: int
    ) -> StepReport:
        _, transfer, _ = self._require_joined()
        scale, rate, decays = translated.made
        if not translated.take():
            self._local_samples += samples
            return StepReport(False, False, None, self._version, None, samples, rate, 0.0, 0.0, 0.0, local=True)
        samples, self._local_samples = samples + self._local_samples, 0
        self._compare_weights()
        transfer.clock.computed()
        staged = transfer.stage(scale, loss, self._client.shared_delta)
        # If only the BUFFERs are not finite, the gradients are already part of the mean of squares.
        is_finite = staged.usable or bool(staged.bad_buffer)
        try:
            if staged.usable:
                report = self._commit(transfer, staged, samples, rate, NO_STEPS, decays)
            else:
                report = self._skip(transfer, staged.loss, samples, rate)
        finally:
            translated.sent(is_finite=is_finite)
        self._count_skipped(staged)
        self._finished |= self._client.run_state is RunState.FINISHED
        self._choose_wire_types(report)
        if self._weight_watch is not None:
            self._weight_watch.remember()
        return report

    def exchange(self, loss: Tensor | float | None = None, samples: int = 0) -> StepReport:
        """Commit what the optimizer has made since the last exchange, and install the reply.

        Scripts that run the optimizer themselves call this after its steps. Movement that is not finite is undone.
        Raises the same errors as `step`.
        """
        with self._committing():
            return self._exchange(loss, samples)

    def _exchange(self, loss: Tensor | float | None, samples: int) -> StepReport:
        _, transfer, _ = self._require_joined()
        local = self._optimizer
        translated = self._translated
        if local is None and translated is None:
            raise RuntimeError("exchange() commits what an optimizer moved: use ParameterServer(..., optimizer=...)")
        self._check_running()
        if translated is not None:
            return self._commit_translated(translated, loss, samples)
        assert local is not None
        local.refuse_unsuitable(self._client.membership.run_settings)
        samples, self._local_samples = samples + self._local_samples, 0
        transfer.clock.computed()
        staged = local.stage(transfer, loss, self._client.shared_delta)
        if staged.usable:
            report = self._commit(transfer, staged, samples, local.rate, StepCount(optimizer_steps=local.steps))
            local.installed(transfer.rounded_away() if report.applied else None)
            local.adapt(report.verdict.relative_speed if report.verdict is not None else 0.0)
        else:
            report = self._skip(transfer, staged.loss, samples, local.rate)
            local.repair()
            local.restart()
        self._count_skipped(staged)
        self._finished |= self._client.run_state is RunState.FINISHED
        self._choose_wire_types(report)
        return report

    def unscale_(self, scaler: object) -> None:
        """Unscale the gradients before clipping. `step` then does not unscale them again."""
        flat, _, scaling = self._require_joined()
        holder = self._translated or self._optimizer
        if holder is not None:
            holder.unscale(scaler)
            return
        flat.collect_gradients()
        scaling.unscale(scaler)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the model's gradients, as an optimizer's `zero_grad` does.

        `step` has done so already. With this method a script's function that takes an optimizer, and calls its
        `zero_grad` and `step`, can take this object in its place.
        """
        self.model.zero_grad(set_to_none)

    def close(self, reason: str = "done") -> None:
        """Leave the run and disconnect. The model remains usable."""
        with termination.held():
            self._end(reason)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(termination.handled())
            self.join()
            self._until_exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        with self._until_exit, termination.held():
            try:
                if error is None or isinstance(error, TerminatedError):
                    self._commit_rest()
            except BaseException as failure:
                self._end(_reason(failure))
                raise
            self._end(_reason(error))
        return isinstance(error, RunFinishedError | IgnoredEndError)

    @property
    def finished(self) -> bool:
        """Whether the run is over for this worker: a step has found its end, or the run was finished before it joined.

        The model then holds the run's newest parameters, and the next `step` or `exchange` raises RunFinishedError.
        """
        return self._finished

    @property
    def client(self) -> Client:
        """The connection to the server. Do not call its methods while training."""
        return self._client

    @property
    def membership(self) -> Membership:
        """What the server answered when this worker joined."""
        return self._client.membership

    @property
    def rank(self) -> int:
        """This worker's rank in the run, from 0."""
        return self.membership.rank

    @property
    def host_rank(self) -> int:
        """This worker's rank among those on its host, from 0."""
        return self.membership.host_rank

    @property
    def run_settings(self) -> RunSettings:
        """Return the settings of the run."""
        return self.membership.run_settings

    @property
    def run_state(self) -> RunState:
        """The run's state as the server last reported it."""
        return RunState.FINISHED if self._finished else self._client.run_state

    @property
    def version(self) -> Version | None:
        """The version of the parameters that the model has. None before the first."""
        return self._version

    @property
    def shares_memory(self) -> bool:
        """Whether deltas and parameters go through memory that is shared with the server."""
        return self._client.shared_delta is not None

    @property
    def every(self) -> int:
        """Number of optimizer steps between two exchanges (H)."""
        return 1 if self._optimizer is None else self._optimizer.every

    @property
    def eta(self) -> float:
        """The learning rate of the next step. With `optimizer` it is that of the first group."""
        holder = self._translated or self._optimizer
        return self._client.next_eta if holder is None else holder.rate

    @property
    def progress(self) -> float:
        """How far the run is, in commits of one worker.

        That is the number of all commits divided by the number of workers that are live or have finished. It never
        decreases. Scripts that compute their own learning rate use it instead of their count of steps.
        """
        return self._progress

    @property
    def recipe_text(self) -> str:
        """What the run does with the script's optimizer, in one line. Empty without `optimizer`."""
        run = self.run_settings
        return "" if self._choice is None else self._choice.describe(run.rule if run.recipe is None else None)

    def _commit(
        self,
        transfer: Transfer,
        staged: Staged,
        samples: int,
        eta: float,
        steps: StepCount,
        decays: Sequence[float] = (),
    ) -> StepReport:
        has_recipe = self.run_settings.recipe is not None
        if has_recipe and eta < 0:
            raise UnsupportedOptimizerError(
                f"the learning rate is {eta:g}: a schedule has gone on behind its end. Let it stay at 0 there, for "
                "example LambdaLR(optimizer, lambda step: max(0, 1 - step / 1000)), or end the run there (--steps 1000)"
            )
        if self._unfollowed is not None:
            self._unfollowed.compare(eta)
        started = time.perf_counter()
        self._exchanges += 1
        verdict, applied, loss = None, False, staged.loss
        try:
            outcome = self._client.commit(
                transfer.delta,
                transfer.reply,
                loss=loss,
                samples=samples,
                in_place=transfer.in_place,
                scale=staged.scale,
                steps=steps,
                buffers=transfer.buffers,
                eta=eta if has_recipe else None,
                decays=decays,
            )
        except RunFinishedError:
            exchange = time.perf_counter() - started
            self._install_last(transfer)
            compute, copy = transfer.clock.times()
            # last_report does not change, because no commit of this worker belongs to this.
            return StepReport(False, False, None, self._version, loss, samples, eta, compute, copy, exchange)
        except NotInitializedError:
            # The server restarted empty.
            exchange = time.perf_counter() - started
            self._bring_parameters(transfer, has_parameters=False)
        else:
            exchange = time.perf_counter() - started
            transfer.arrived(outcome.parameters, outcome.buffers, outcome.rest)
            transfer.install()
            self._version = outcome.version
            verdict, applied = outcome.verdict, outcome.applied
            self._finished = outcome.run_finished
            if verdict is not None:
                self._progress = max(self._progress, verdict.progress)
                self._watch(verdict, eta)
        if applied:
            self.applied_steps += 1
        compute, copy = transfer.clock.times()
        self.last_report = StepReport(
            applied, False, verdict, self.version, loss, samples, eta, compute, copy, exchange
        )
        return self.last_report

    def _choose_wire_types(self, report: StepReport) -> None:
        """Measure the exchange of a commit after its reply was installed. This may change the wire types."""
        choice = self._wire_choice
        if choice is None or choice.is_settled or self._finished or not report.applied:
            return
        event = choice.add(report.compute_seconds + report.copy_seconds, report.exchange_seconds)
        if event is not None:
            self._on_event(event)
        if self._client.version is None:  # the server was restarted at that moment
            transfer = self._require_joined()[1]
            self._bring_parameters(transfer, has_parameters=self._client.membership.has_parameters)
            if self._optimizer is not None:
                self._optimizer.installed(None)

    def _watch(self, verdict: Verdict, eta: float) -> None:
        """Check for mistakes in a script that raise no error, and warn of them."""
        self._gradient_watch.committed(verdict, eta)
        if self._batch_watch is not None:
            batches = self._batch_watch.committed()
            if batches is not None:
                self._batch_watch = None
                if batches:
                    self._client.report_batches(batches)

    def _skip(self, transfer: Transfer, loss: float | None, samples: int, eta: float) -> StepReport:
        self._exchanges += 1
        if self._local.enabled or self._optimizer is not None:
            transfer.install()  # undo local steps
        else:
            transfer.restore_buffers()
        compute, copy = transfer.clock.times()
        self.last_report = StepReport(False, True, None, self.version, loss, samples, eta, compute, copy, 0.0)
        return self.last_report

    def _count_skipped(self, staged: Staged) -> None:
        is_skipped = not staged.usable
        self.skipped_steps += is_skipped
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_skipped else 0
        if self._skipped_in_a_row == 1:
            what = "gradient is" if self._optimizer is None else "parameters are"
            if staged.bad_buffer:
                what = f"new values of the buffer {staged.bad_buffer} are"
            _log.warning("the %s not finite: this step is skipped (%d so far)", what, self.skipped_steps)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            what = "gradients" if self._optimizer is None else "commits"
            rate = "--eta" if self._choice is None else "learning rate"
            if staged.bad_buffer:
                raise DivergedError(
                    f"{self._skipped_in_a_row} steps in a row made the buffer {staged.bad_buffer} infinite or NaN: if "
                    "the script means that, register the buffer with persistent=False, so that it stays with the worker"
                )
            raise DivergedError(
                f"{self._skipped_in_a_row} {what} in a row were not finite: start again with a smaller {rate}, and "
                "look for a division by 0 or the log of 0 in the loss"
            )

    def _commit_rest(self) -> None:
        if self.run_state is RunState.FINISHED:
            return
        holder = self._translated or self._optimizer
        try:
            if holder is not None:
                if holder.has_rest:
                    self.exchange()
            elif local_steps := self._local.complete(self._local_state):
                with self._committing():
                    self._commit_gradients(None, 0, None, local_steps)
        except Exception as trouble:
            if not termination.has_begun:
                raise
            _log.warning("the last commit: %s", trouble)

    def _committing(self) -> contextlib.AbstractContextManager[None]:
        is_waiting = self._client.run_state is RunState.WAITING
        return termination.held(0.0 if is_waiting else COMMIT_SECONDS, self._client.give_up)

    def _end(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # a device that failed must not keep the worker from leaving
            self._frozen_watch.compare()
        if self._optimizer_watch is not None:
            self._optimizer_watch.close()
        if self._batch_watch is not None:
            self._batch_watch.close()
        for one in (*self._followed, self._translated, self._optimizer):
            if one is not None:
                one.close()
        if self._joined is not None and (self._local.taken or self._has_surplus_steps()):
            self._joined[1].install()  # undo local steps
        self._client.leave(reason, COMMIT_SECONDS / 2 if termination.has_begun else None)
        self._client.close()

    def _bring_parameters(self, transfer: Transfer, *, has_parameters: bool) -> None:
        """Upload the parameters if the server has none, then pull, because only a pull sets the base version."""
        if not has_parameters:
            self._client.initialize(transfer.first_payload(), adapter=self._adapter)
        self._version = self._client.pull(transfer.reply)
        transfer.arrived()
        transfer.install()

    def _install_last(self, transfer: Transfer) -> None:
        """Install the newest parameters of a run that was finished before this worker's commit."""
        self._finished = True
        if self._local.enabled or self._optimizer is not None:
            transfer.install()  # undo local steps, also if the pull fails
        try:
            self._bring_parameters(transfer, has_parameters=True)
        except ClientError as trouble:
            self._can_restore = False  # the pull may have overwritten a part of the reply before
            _log.warning(
                "the run is finished, but its newest parameters did not arrive (%s): the model keeps those of its last "
                "step; the server's checkpoint has the newest",
                trouble,
            )

    def _check_running(self) -> None:
        """Raise if the run is finished, and discard what the loop has computed since it ended.

        RunFinishedError is an Exception, so `except Exception` around `step` catches it, and an endless loop would
        never end. Therefore the worker raises IgnoredEndError, a SystemExit, after MAX_IGNORED_ENDS of them.
        """
        if not self._finished:
            return
        self._discard_surplus()
        self._raised_ends += 1
        if self._raised_ends <= MAX_IGNORED_ENDS:
            raise RunFinishedError("the run is finished; leave the training loop")
        _log.warning(
            "%s: the run is finished. The script has caught RunFinishedError %d times and called again, so an "
            "`except Exception` (or a bare `except`) around this call hides the end of the run; the block ends now. "
            "Put `except gemps.RunFinishedError: raise` before it, or leave the loop when ps.finished is true",
            _calling_line(),
            MAX_IGNORED_ENDS,
        )
        raise IgnoredEndError

    def _discard_surplus(self) -> None:
        """Undo what an iteration after the run's end did to gradients and BUFFERs, and to what `exchange` moves."""
        flat, transfer, _ = self._require_joined()
        if self._optimizer is None:
            flat.zero_gradients()
        if not self._can_restore:
            return
        with contextlib.suppress(UnsupportedModelError):  # a model that the script has changed is left as it is
            flat.collect_parameters()
            if self._has_surplus_steps():
                transfer.install()
            else:
                transfer.restore_buffers()

    def _has_surplus_steps(self) -> bool:
        """Whether the script's optimizer moved parameters after the run's end."""
        return self._finished and self._can_restore and self._optimizer is not None and self._optimizer.steps > 0

    def _require_joined(self) -> tuple[FlatModel, Transfer, LossScaler]:
        if self._joined is None:
            raise RuntimeError("not a worker yet: use `with ParameterServer(...) as ps:`, or call ps.join() first")
        return self._joined


def _tell(line: str) -> None:
    """Log a line of level INFO, or print it to standard error if the script has not set up logging.

    Without a handler Python drops lines of this level, and the worker's log would not have them. A script that allows
    less than warnings gets no line.
    """
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", line)
    elif _log.isEnabledFor(logging.WARNING):
        print(line, file=sys.stderr, flush=True)


def _address(address: object) -> str:
    """The server's address, as given or from GEMPS_SERVER. Raises TypeError or ValueError with the fix."""
    if isinstance(address, nn.Module):
        raise TypeError(
            'the address is missing: ParameterServer("HOST:PORT", model), or ParameterServer(model=model) where '
            "GEMPS_SERVER is set, as gemps train and gemps.launch do"
        )
    found = address or os.environ.get("GEMPS_SERVER")
    if not found:
        raise ValueError(
            'no server: pass its address, ParameterServer("HOST:PORT", model), or set GEMPS_SERVER; gemps train '
            "and gemps.launch do"
        )
    return str(found)


def _check_optimizer(optimizer: Optimizer | None, every: Every, schedulers: Sequence[LRScheduler]) -> None:
    """Raise ValueError for arguments that need an optimizer, or another one."""
    if optimizer is None and every != 1:
        raise ValueError(f"every={every!r} counts steps of an optimizer: pass optimizer= as well")
    if optimizer is None and schedulers:
        raise ValueError("scheduler= follows the run with an optimizer's learning rate: pass optimizer= as well")
    if isinstance(optimizer, Optimizer) and not all(sets_rates_of(optimizer, one) for one in schedulers):
        raise ValueError(
            "scheduler= sets the learning rates of another optimizer than optimizer=: create it from that one"
        )


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'{argument} is a list of names: {argument}=["target"]')
    return tuple(names)


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, RunFinishedError | IgnoredEndError):
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        return "terminated"
    return f"error: {type(error).__name__}"


def _calling_line() -> str:
    """FILE:LINE of the script's call, outside this package."""
    package, frame = os.path.dirname(__file__), sys._getframe()
    while frame.f_code.co_filename.startswith(package) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
