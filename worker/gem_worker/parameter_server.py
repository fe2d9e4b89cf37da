"""`ParameterServer`: five lines that make an ordinary training script a worker of a run (DESIGN.md, section 5)."""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, get_args

from torch import Tensor, nn

from gem_core.layout import Layout
from gem_core.wire_types import WireType
from gem_worker.client import (
    Client,
    ClientEvent,
    ClientSettings,
    Membership,
    NotInitialized,
    RunFinished,
    RunSettings,
    RunState,
    Verdict,
    Version,
)
from gem_worker.errors import Diverged, UnsupportedModel
from gem_worker.flat_model import FlatModel
from gem_worker.loss_scaling import LossScaling
from gem_worker.model_tensors import inspect_model
from gem_worker.settings import WireName
from gem_worker.transfer import Transfer, host_view

_log = logging.getLogger(__name__)

# So many steps in a row without a usable gradient end the training. GradScaler needs at most 16 to come down from its
# first scale of 65 536 to 1, so it is far from that.
MAX_SKIPPED_IN_A_ROW = 100

_WIRE_TYPES: dict[str, WireType] = {
    "float32": WireType.FLOAT32,
    "float16": WireType.FLOAT16,
    "bfloat16": WireType.BFLOAT16,
    "int8": WireType.INT8_BLOCK,
}


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of one step.

    applied: the delta was applied. False when the step was skipped, or when the delta was dropped because the server
        had been restarted; fresh parameters are installed in the latter case.
    skipped: the gradient was not finite; nothing was sent.
    verdict: the server's, with staleness and statistics; None where there is none.
    version: of the parameters that the model now holds.
    loss: as given, where finite.  samples: as given.  eta: the learning rate that scaled the gradient.
    compute_seconds: the training loop's own work since the step before, loading of data included.
    copy_seconds: between device and host, scaling and casts included; on CUDA the copy to the device is counted in the
        step after, so that nobody waits for it.
    exchange_seconds: the round trip, waiting for others included.
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
    the run is over; then `step` raises `RunFinished`, which the `with` block absorbs. The model stays on its device.
    Its parameters keep their identity, but become views of flat buffers when the block is entered: move, convert,
    freeze and tie before that. Every worker needs the same architecture.

    **DataLoader workers.** A process that is forked while a connection is open may hang, and DataLoader forks its
    workers on Linux when an iterator is made. So either use `DataLoader(..., multiprocessing_context="spawn")` (or
    "forkserver"), or `num_workers=0`, or make the iterator before the block is entered and keep its processes with
    `persistent_workers=True`.

    **Mixed precision.** `torch.autocast` needs nothing. With a GradScaler: `scaler.scale(loss).backward()`, then
    `ps.step(loss, scaler=scaler)`, which unscales, skips the step if the gradient overflowed, and updates the scaler.
    To clip gradients call `ps.unscale_(scaler)` first.

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
        on_join: called once with the Membership, after joining and before the parameters become views: the place to
            move the model to a device that depends on the rank on this host (`device_for`), or to draw first parameters
            from `membership.run_settings.seed`.
        device: the device's name in the run's status, where `on_join` will move the model; default: the model's own.
        on_event: told of changes of the connection; default: the log.
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
            settings=client_settings or ClientSettings(),
            on_event=on_event,
        )
        self._joined: tuple[FlatModel, Transfer, LossScaling] | None = None
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
            transfer = Transfer(flat, membership.delta_wire_type, membership.parameter_wire_type)
            try:
                self._bring_parameters(transfer, has_parameters=membership.has_parameters)
            except RunFinished:
                self._finished = True  # and it never had parameters; step() says so
            self._joined = flat, transfer, LossScaling(flat)
        except BaseException as error:
            self.close(_reason(error))
            raise

    def step(self, loss: Tensor | float | None = None, samples: int = 0, *, scaler: object = None) -> StepReport:
        """Commit -eta * gradient, install the fresh parameters, zero the gradients.

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
        if self._finished:
            raise RunFinished("the run is finished; leave the training loop")
        flat.collect_gradients()
        scaling.unscale(scaler)
        eta = self._client.next_eta
        transfer.share(self._client.shared_delta)
        staged = transfer.stage(eta, loss)
        flat.zero_gradients()
        scaling.update(scaler)
        if staged.usable:
            self._skipped_in_a_row = 0
            report = self._commit(transfer, staged.loss, samples, eta)
        else:
            report = self._skip(transfer, staged.loss, samples, eta)
        if self._finished or self._client.run_state is RunState.FINISHED:
            self._finished = True
            raise RunFinished("the run is finished")
        return report

    def unscale_(self, scaler: object) -> None:
        """Divide the gradients by the scale now, for example to clip them; `step` then does not do it again."""
        flat, _, scaling = self._require_joined()
        flat.collect_gradients()
        scaling.unscale(scaler)

    def close(self, reason: str = "done") -> None:
        """Leave the run and close the connection: what leaving the `with` block does. The model stays usable."""
        self._client.leave(reason)
        self._client.close()

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.close(_reason(error))
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
        return self._client.version

    @property
    def eta(self) -> float:
        """The learning rate that the next step will use."""
        return self._client.next_eta

    def _commit(self, transfer: Transfer, loss: float | None, samples: int, eta: float) -> StepReport:
        started = time.perf_counter()
        verdict, applied = None, False
        try:
            outcome = self._client.commit(transfer.delta, transfer.reply, loss=loss, samples=samples, in_place=True)
        except RunFinished:
            self._finished = True
            raise
        except NotInitialized:
            # The server was started anew and empty: what this worker holds is as good a start as anybody's.
            exchange = time.perf_counter() - started
            self._bring_parameters(transfer, has_parameters=False)
        else:
            exchange = time.perf_counter() - started
            transfer.install(outcome.parameters)
            verdict, applied = outcome.verdict, outcome.applied
            self._finished = outcome.run_finished
        if applied:
            self.applied_steps += 1
        compute, copy = transfer.clock.times()
        self.last_report = StepReport(
            applied, False, verdict, self.version, loss, samples, eta, compute, copy, exchange
        )
        return self.last_report

    def _skip(self, transfer: Transfer, loss: float | None, samples: int, eta: float) -> StepReport:
        transfer.restore_buffers()
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == 1:
            _log.warning("the gradient is not finite: this step is skipped (%d so far)", self.skipped_steps)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise Diverged(
                f"{self._skipped_in_a_row} gradients in a row were not finite: start again with a smaller --eta, and "
                "look for a division by 0 or the log of 0 in the loss"
            )
        compute, copy = transfer.clock.times()
        self.last_report = StepReport(False, True, None, self.version, loss, samples, eta, compute, copy, 0.0)
        return self.last_report

    def _bring_parameters(self, transfer: Transfer, *, has_parameters: bool) -> None:
        """Upload the model's parameters if the run has none, then install the run's: only a pull settles a base."""
        if not has_parameters:
            self._client.initialize(transfer.first_payload())
        payload = transfer.whole_reply()
        self._client.pull(host_view(payload), with_constants=True)
        transfer.install_whole(payload)

    def _require_joined(self) -> tuple[FlatModel, Transfer, LossScaling]:
        if self._joined is None:
            raise RuntimeError("not a worker yet: use `with ParameterServer(...) as ps:`, or call ps.join() first")
        return self._joined


def default_worker_name() -> str:
    """Host name and process id: unique in a run, but not the same after a restart."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _offer(name: WireName) -> tuple[WireType, ...]:
    """What the worker can speak, best first; every server speaks FLOAT32."""
    if name not in _WIRE_TYPES:
        raise ValueError(f"{name!r} is no wire type; use one of {', '.join(get_args(WireName))}")
    return tuple(dict.fromkeys((_WIRE_TYPES[name], WireType.FLOAT32)))


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
