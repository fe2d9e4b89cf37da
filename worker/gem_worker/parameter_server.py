"""`ParameterServer`: five lines that make an ordinary training script a worker of a run (DESIGN.md, section 5)."""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, get_args

from torch import Tensor, nn

from gem_core.layout import Layout
from gem_core.wire_types import WireType
from gem_worker.client import (
    Client,
    ClientEvent,
    ClientSettings,
    CommitOutcome,
    Courier,
    Membership,
    NotInitialized,
    RunFinished,
    RunSettings,
    RunState,
    Verdict,
    Version,
)
from gem_worker.errors import MAX_SKIPPED_IN_A_ROW, Diverged, UnsupportedModel
from gem_worker.flat_model import FlatModel
from gem_worker.local_steps import LocalSteps
from gem_worker.loss_scaling import LossScaling
from gem_worker.model_tensors import inspect_model
from gem_worker.optimizer_watch import OptimizerWatch
from gem_worker.settings import WireName
from gem_worker.transfer import Staged, Transfer, host_view
from gem_worker.wire_names import WIRE_TYPES

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of one step. With overlap, of the step before the one that returns it.

    applied: the delta was applied. False when the step was skipped, or when the delta was dropped because the server
        had been restarted; fresh parameters are installed in the latter case.
    skipped: the gradient was not finite; nothing was sent.
    verdict: the server's, with staleness and statistics; None where there is none.
    version: of the parameters that the model now holds.
    loss: as given, where finite.  samples: as given.  eta: the learning rate that scaled the gradient.
    compute_seconds: the training loop's own work since the step before, loading of data included.
    copy_seconds: between device and host, scaling and casts included; on CUDA the copy to the device is counted in the
        step after, so that nobody waits for it.
    exchange_seconds: the round trip, waiting for others included; with overlap only what the loop waited for it.
    under_way: nothing is known yet: the first step with overlap.
    local: the rule has workers take steps by themselves between two commits, and this was one of them: nothing was
        sent, and nothing of it is known but samples and eta.
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
    under_way: bool = False
    local: bool = False


class ParameterServer:
    """Membership of `model` in a run, for a training loop of your own.

    ::

        from gem_worker import ParameterServer

        with ParameterServer("localhost:50051", model) as ps:  # joins; uploads parameters, or installs current ones
            for inputs, labels in loader:
                loss = criterion(model(inputs), labels)
                loss.backward()
                ps.step(loss)  # commits -eta * gradient, installs the fresh parameters, zeroes the gradients

    There is no optimiser: the server's update rule takes its place, and the server decides the learning rate and when
    the run is over; then `step` raises `RunFinished`, which the `with` block absorbs. An `optimizer.step()` left in the
    loop has no effect on the run, and is warned about once. The model stays on its device. Its parameters keep their
    identity, but become views of flat buffers when the block is entered: move, convert, freeze and tie before that.
    Every worker needs the same architecture.

    **DataLoader workers.** A process that is forked while a connection is open may hang, and DataLoader forks its
    workers on Linux when an iterator is made. So either use `DataLoader(..., multiprocessing_context="spawn")` (or
    "forkserver"), or `num_workers=0`, or make the iterator before the block is entered and keep its processes with
    `persistent_workers=True`.

    **Mixed precision.** `torch.autocast` needs nothing. With a GradScaler: `scaler.scale(loss).backward()`, then
    `ps.step(loss, scaler=scaler)`, which unscales, skips the step if the gradient overflowed, and updates the scaler.
    To clip gradients call `ps.unscale_(scaler)` first.

    **Overlap.** With `overlap=True` a step hands its commit over and returns at once, so that the next gradient is
    computed while the exchange is in flight, at the parameters that came with the commit before. When a gradient is
    applied this worker has thus committed once more since: its staleness is one commit of its own more, and as many of
    each other worker, so among equally fast workers about twice what it was. The rule takes that into account exactly,
    for the server keeps two snapshots of this worker (one more vector of its memory; here a third payload is kept in
    host memory), but as many steps learn less: worth it where steps mostly wait for the network. A step reports on the
    step before. BUFFERs, such as BatchNorm's statistics, go on from the model's own, one batch ahead of its parameters.
    The last commit is waited for when the block is left.

    **Local steps.** Some update rules have a worker take steps by itself between two commits (`agn`, `easgd` with a
    period): `step` does that, too, and the steps that commit nothing say `local`. The run's budget counts commits.

    **Gradients.** Several backwards before a step add up. `zero_grad(set_to_none=True)` is allowed but costs a copy of
    every gradient; `step` has zeroed them already. A parameter without a gradient commits a delta of 0.

    Args:
        address: HOST:PORT; default: the environment's GEMPS_SERVER.
        model: on the device where it shall train.
        name: this worker's name, unique in the run; the rank follows it. Default: the environment's GEMPS_WORKER_NAME,
            else host name and process id.
        steps_per_epoch: steps of one pass over this worker's data; needed where the run's budget is in epochs.
        delta_wire, parameter_wire: types in which deltas go and parameters come: "float32", "float16", "bfloat16" or
            "int8". The server may choose "float32" instead.
        overlap: compute the next gradient during the exchange, see above.
        on_join: called once with the Membership, after joining and before the parameters become views: the place to
            move the model to a device that depends on the rank on this host (`device_for`), or to draw first parameters
            from `membership.run_settings.seed`.
        device: the device's name in the run's status, where `on_join` will move the model; default: the model's own.
        on_event: told of changes of the connection, with overlap from another thread; default: the log.
        client_settings: patience and time-outs of the connection.

    Raises (on entering): UnsupportedModel; ServerUnavailable when nobody answers for long; ServerRefused, for example
    when another worker's model is different.
    """

    def __init__(
        self,
        address: str | None = None,
        model: nn.Module | None = None,
        *,
        name: str | None = None,
        steps_per_epoch: int = 0,
        delta_wire: WireName = "float32",
        parameter_wire: WireName = "float32",
        overlap: bool = False,
        on_join: Callable[[Membership], None] | None = None,
        device: str | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        address = address or os.environ.get("GEMPS_SERVER")
        if not address:
            raise ValueError('no server: pass its address, ParameterServer("HOST:PORT", model), or set GEMPS_SERVER')
        if not isinstance(model, nn.Module):
            raise TypeError(
                f'the model is {type(model).__name__}, not a torch.nn.Module: ParameterServer("HOST:PORT", model)'
            )
        self.model = model
        client_settings = client_settings or ClientSettings()
        self._on_join = on_join
        self._layout: Layout
        self._layout, tensors = inspect_model(model)
        self._client = Client(
            address,
            worker_name=name or os.environ.get("GEMPS_WORKER_NAME") or default_worker_name(),
            layout=self._layout,
            device=device or str(tensors[0].tensor.device),
            steps_per_epoch=steps_per_epoch,
            delta_wire_types=_offer(delta_wire),
            parameter_wire_types=_offer(parameter_wire),
            overlap=overlap,
            settings=client_settings,
            on_event=on_event,
        )
        self._wants_overlap = overlap
        self._patience_after_errors = client_settings.leave_timeout
        self._joined: tuple[FlatModel, Transfer, LossScaling] | None = None
        self._courier: Courier | None = None
        self._optimizer_watch: OptimizerWatch | None = None
        self._local: LocalSteps
        self._local_samples = 0
        self._step_before: StepReport | None = None
        self._version: Version | None = None
        self._finished = False
        self._skipped_in_a_row = 0
        self.applied_steps = 0
        self.skipped_steps = 0
        self.last_report: StepReport | None = None

    def join(self) -> None:
        """Become a worker: what entering the `with` block does. Waits for a server that is not there yet."""
        try:
            membership = self._client.join()
            if self._on_join is not None:
                self._on_join(membership)
            flat = FlatModel(self.model)
            difference = self._layout.first_difference(flat.layout)
            if difference is not None:
                raise UnsupportedModel(f"the model's layout changed while it joined: {difference}")
            if self._wants_overlap and not membership.overlap:
                _log.warning(
                    "this server (%s) grants no overlap: each step waits for its reply", membership.server_version
                )
            wire_types = membership.delta_wire_type, membership.parameter_wire_type
            overlap = membership.overlap
            transfer = Transfer(flat, *wire_types, overlap=overlap, scales_later=not overlap)
            try:
                self._bring_parameters(transfer, has_parameters=membership.has_parameters)
            except RunFinished:
                self._finished = True  # and it never had parameters; step() says so
            self._joined = flat, transfer, LossScaling(flat)
            run = membership.run_settings
            self._local = LocalSteps(flat, run.local_steps, normalise=run.normalise_local_steps)
            if membership.overlap:
                self._courier = Courier(self._client)
            self._optimizer_watch = OptimizerWatch(self.model)
        except BaseException as error:
            self.close(_reason(error))
            raise

    def step(self, loss: Tensor | float | None = None, samples: int = 0, *, scaler: object = None) -> StepReport:
        """Commit -eta * gradient, install the fresh parameters, zero the gradients.

        With overlap: wait for the reply of the commit before, hand this one over, install that reply's parameters; the
        report is of the commit before.

        Args:
            loss: of this step, for the run's statistics: a scalar tensor or a number, not multiplied by a scaler.
            samples: training samples in this step; 0: unknown.
            scaler: a torch.amp.GradScaler that scaled the loss.

        Raises:
            RunFinished: the budget is spent; the `with` block absorbs it. The model then holds the newest parameters.
            Diverged: the gradient was not finite 100 times in a row.
            UnsupportedModel: the model changed since it joined.
            ServerUnavailable, ServerRefused: from the connection.
        """
        flat, transfer, scaling = self._require_joined()
        self._check_running()
        flat.collect_gradients()
        scaling.unscale(scaler)
        if not self._local.take(self.eta):
            scaling.update(scaler)
            self._local_samples += samples
            return StepReport(False, False, None, self._version, None, samples, self.eta, 0.0, 0.0, 0.0, local=True)
        samples, self._local_samples = samples + self._local_samples, 0
        transfer.clock.computed()
        base = self._version
        before, arrived = self._settle(transfer)
        try:
            self._check_running()  # or this gradient is of a step beyond the budget
            eta = self._client.next_eta
            staged = transfer.stage(eta, loss, self._client.shared_delta)
            if self._courier is not None:
                report = self._hand(transfer, self._courier, base, arrived, staged, samples, eta)
                report = before or replace(report, skipped=False, under_way=True)
            elif staged.usable:
                report = self._commit(transfer, staged, samples, eta)
            else:
                report = self._skip(transfer, staged.loss, samples, eta)
        finally:
            flat.zero_gradients()
            scaling.update(scaler)
        self._count_skipped(not staged.usable)
        if self._courier is None:
            self._finished |= self._client.run_state is RunState.FINISHED
            self._check_running()
        return report

    def unscale_(self, scaler: object) -> None:
        """Divide the gradients by the scale now, for example to clip them; `step` then does not do it again."""
        flat, _, scaling = self._require_joined()
        flat.collect_gradients()
        scaling.unscale(scaler)

    def close(self, reason: str = "done") -> None:
        """Leave the run and close the connection: what leaving the `with` block does. The model stays usable.

        With overlap the last commit is waited for first, and what it raises is raised when all is closed.
        """
        self._end(reason, None)

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._end(_reason(error), error)
        return isinstance(error, RunFinished)

    @property
    def membership(self) -> Membership:
        """What joining settled: rank, host_rank, run_settings, wire types."""
        return self._client.membership

    @property
    def rank(self) -> int:
        """0, 1, ...: unique in the run; use it with `run_settings.seed` to give each worker its own order of data."""
        return self.membership.rank

    @property
    def host_rank(self) -> int:
        """Rank among the workers of this host: which of its devices to use."""
        return self.membership.host_rank

    @property
    def run_settings(self) -> RunSettings:
        """The run's settings, as the server gives them."""
        return self.membership.run_settings

    @property
    def run_state(self) -> RunState:
        """As the server said last."""
        return RunState.FINISHED if self._finished else self._client.run_state

    @property
    def version(self) -> Version | None:
        """Of the parameters that the model holds."""
        return self._version

    @property
    def shares_memory(self) -> bool:
        """Whether deltas and parameters go through memory shared with the server, and not over the network."""
        return self._client.shared_delta is not None

    @property
    def eta(self) -> float:
        """The learning rate that the next step will use; with overlap a reply that arrives meanwhile may change it."""
        return self._client.next_eta

    def _commit(self, transfer: Transfer, staged: Staged, samples: int, eta: float) -> StepReport:
        started = time.perf_counter()
        verdict, applied, loss = None, False, staged.loss
        try:
            outcome = self._client.commit(
                transfer.delta,
                transfer.reply,
                loss=loss,
                samples=samples,
                in_place=transfer.in_place,
                scale=staged.scale,
            )
        except RunFinished:
            self._finished = True
            raise
        except NotInitialized:
            # The server was started anew and empty: what this worker holds is as good a start as anybody's.
            exchange = time.perf_counter() - started
            self._bring_parameters(transfer, has_parameters=False)
        else:
            exchange = time.perf_counter() - started
            transfer.arrived(outcome.parameters)
            transfer.install()
            constants_are_void = self._constants_are_void(outcome)
            self._version = outcome.version
            verdict, applied = outcome.verdict, outcome.applied
            self._finished = outcome.run_finished
            if constants_are_void:
                self._bring_parameters(transfer, has_parameters=True)
        if applied:
            self.applied_steps += 1
        compute, copy = transfer.clock.times()
        self.last_report = StepReport(
            applied, False, verdict, self.version, loss, samples, eta, compute, copy, exchange
        )
        return self.last_report

    def _skip(self, transfer: Transfer, loss: float | None, samples: int, eta: float) -> StepReport:
        if self._local.are_taken:
            transfer.install()  # the model has moved on from what the server knows of it
        else:
            transfer.restore_buffers()
        compute, copy = transfer.clock.times()
        self.last_report = StepReport(False, True, None, self.version, loss, samples, eta, compute, copy, 0.0)
        return self.last_report

    def _count_skipped(self, is_skipped: bool) -> None:
        self.skipped_steps += is_skipped
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_skipped else 0
        if self._skipped_in_a_row == 1:
            _log.warning("the gradient is not finite: this step is skipped (%d so far)", self.skipped_steps)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise Diverged(
                f"{self._skipped_in_a_row} gradients in a row were not finite: start again with a smaller --eta, and "
                "look for a division by 0 or the log of 0 in the loss"
            )

    # --- with overlap

    def _settle(self, transfer: Transfer, timeout: float | None = None) -> tuple[StepReport | None, Version | None]:
        """The report of the step before, and the version that arrived and is to be installed; waits for its reply.

        When the reply says that the run is finished it is installed already. (None, None) without overlap, when there
        was no step before, and when there is no reply within `timeout` seconds.
        """
        courier, report = self._courier, self._step_before
        if courier is None or report is None:
            return None, None
        outcome: CommitOutcome | None = None
        if courier.is_under_way:
            started = time.perf_counter()
            try:
                outcome = courier.collect(timeout)
                if outcome is None:
                    return None, None
            except RunFinished:
                self._finished = True
                raise
            except NotInitialized:
                # As in `_commit`. The gradient that was computed meanwhile is of parameters that no server knows.
                self._bring_parameters(transfer, has_parameters=False)
            report = replace(report, exchange_seconds=time.perf_counter() - started, under_way=False)
        if outcome is None:
            report = replace(report, version=self._version)
        else:
            transfer.arrived(outcome.parameters)
            report = replace(report, applied=outcome.applied, verdict=outcome.verdict, version=outcome.version)
            self.applied_steps += outcome.applied
            self._finished = outcome.run_finished or self._client.run_state is RunState.FINISHED
            if self._finished:
                self._install(transfer, outcome.version, buffers=True)
            elif self._constants_are_void(outcome):
                # The gradient that was computed meanwhile is of the server before: it is dropped.
                self._bring_parameters(transfer, has_parameters=True)
                outcome = None
        self._step_before, self.last_report = None, report
        return report, outcome.version if outcome is not None and not self._finished else None

    def _hand(
        self,
        transfer: Transfer,
        courier: Courier,
        base: Version | None,
        arrived: Version | None,
        staged: Staged,
        samples: int,
        eta: float,
    ) -> StepReport:
        """Hand the commit of a gradient at `base` over, and install what arrived; returns what is known of this step.

        In that order, so that the exchange begins at once; but what lies in shared memory has to be read before. A
        gradient is dropped when the server does not keep the version that it is of any more.
        """
        # Without any base an earlier commit has failed for good: this one says so.
        goes = staged.usable and base is not None and (base in self._client.bases or not self._client.bases)
        # The BUFFERs that arrived are those of the commit before; the model's own have seen one batch more, and are on
        # their way. Where this gradient is not, they must not stay either.
        if arrived is not None and transfer.is_elsewhere:
            self._install(transfer, arrived, buffers=not goes)
        if goes and base is not None:
            courier.hand(transfer.delta, transfer.reply, base, staged.loss, samples, in_place=transfer.in_place)
        if arrived is not None:
            if not transfer.is_elsewhere:
                self._install(transfer, arrived, buffers=not goes)
        elif not goes:
            transfer.restore_buffers()
        else:
            transfer.clock.received()
            transfer.clock.installed()
        compute, copy = transfer.clock.times()
        self._step_before = StepReport(
            False, not staged.usable, None, self._version, staged.loss, samples, eta, compute, copy, 0.0, under_way=goes
        )
        return self._step_before

    def _install(self, transfer: Transfer, version: Version, *, buffers: bool) -> None:
        transfer.install(buffers=buffers)
        self._version = version

    def _end(self, reason: str, error: BaseException | None) -> None:
        if self._optimizer_watch is not None:
            self._optimizer_watch.close()
        try:
            if self._courier is not None:
                self._end_overlap(self._courier, error)
        finally:
            self._client.leave(reason)
            self._client.close()

    def _end_overlap(self, courier: Courier, error: BaseException | None) -> None:
        """Wait for the last commit: after an error not for long, and not at all when the process is to end."""
        try:
            if courier.is_under_way and self._joined is not None and (error is None or isinstance(error, Exception)):
                transfer = self._joined[1]
                _, arrived = self._settle(transfer, None if error is None else self._patience_after_errors)
                if arrived is not None:
                    self._install(transfer, arrived, buffers=True)
        except RunFinished:
            pass
        except Exception as trouble:
            if error is None:
                raise
            _log.warning("the last commit: %s", trouble)
        finally:
            courier.close()

    def _constants_are_void(self, outcome: CommitOutcome) -> bool:
        """Whether the server was restarted: without a checkpoint, another worker's CONSTANTs may be the run's now."""
        if self._version is None or self._joined is None or outcome.run_finished:
            return False
        return outcome.version.incarnation != self._version.incarnation and bool(self._joined[0].constants)

    def _bring_parameters(self, transfer: Transfer, *, has_parameters: bool) -> None:
        """Upload the model's parameters if the run has none, then install the run's: only a pull settles a base."""
        if not has_parameters:
            self._client.initialize(transfer.first_payload())
        payload = transfer.whole_reply()
        version = self._client.pull(host_view(payload), with_constants=True)
        transfer.install_whole(payload)
        self._version = version

    def _check_running(self) -> None:
        if self._finished:
            raise RunFinished("the run is finished; leave the training loop")

    def _require_joined(self) -> tuple[FlatModel, Transfer, LossScaling]:
        if self._joined is None:
            raise RuntimeError("not a worker yet: use `with ParameterServer(...) as ps:`, or call ps.join() first")
        return self._joined


def default_worker_name() -> str:
    """Host name and process id: unique in a run, but not the same after a restart."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _offer(name: WireName) -> tuple[WireType, ...]:
    """What the worker can speak, best first; every server speaks FLOAT32."""
    if name not in WIRE_TYPES:
        raise ValueError(f"{name!r} is no wire type; use one of {', '.join(get_args(WireName))}")
    return tuple(dict.fromkeys((WIRE_TYPES[name], WireType.FLOAT32)))


def _reason(error: BaseException | None) -> str:
    """Why a worker leaves, for the server's log."""
    if error is None:
        return "done"
    if isinstance(error, RunFinished):
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        return "terminated"
    return f"error: {type(error).__name__}"
