"""Gradients, bit-identical to those of `gemps work`.

One model serves all workers: parameters, buffers, batch and random state are set before each step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from gem_worker.errors import MAX_SKIPPED_IN_A_ROW, DivergedError
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import GradientTransform, Plan, TransformState
from gem_worker.local_steps import LocalState, LocalSteps
from gem_worker.models import model_for_task
from gem_worker.score import score
from gem_worker.seeds import dropout_seed
from gem_worker.tasks import Samples, Task, batch_numbers
from gem_worker.transfer import Transfer
from numpy.typing import NDArray
from torch.nn import functional

from gem_core import BadValueError, Layout, PayloadFormat, WireType
from gem_core.registry import Direction
from gem_core.rules import WorkerStep
from gem_core.wire_types import NUMPY

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Delta:
    """A step's commit.

    values: float32[parameter_count], as decoded by the server; any worker's next step overwrites them.
    buffers: after the step.
    loss: of the last batch; None: not finite.
    """

    values: NDArray[np.float32]
    buffers: bytes
    loss: float | None
    samples: int


class Hand:
    """A worker's position in data and random numbers, and the states of its direction and local steps."""

    def __init__(
        self,
        batches: Iterator[tuple[int, NDArray[np.int64]]],
        random: torch.Tensor,
        transform: TransformState,
        local: LocalState,
    ) -> None:
        self.batches = batches
        self.random = random
        self.transform = transform
        self.local = local


class Workload:
    """A task and a model.

    `seed`: of parameters, sample order and dropout. `worker_step`: default one step. Raises TaskError for an unsuitable
    model.
    """

    def __init__(
        self,
        task: Task,
        model: str,
        batch_size: int,
        seed: int,
        delta_wire: WireType = WireType.FLOAT32,
        parameter_wire: WireType = WireType.FLOAT32,
        worker_step: WorkerStep | None = None,
        direction: Direction = "gradient",
        clip_norm: float = 0.0,
    ) -> None:
        self._task = task
        self._batch_size = batch_size
        self._seed = seed
        self.model = model_for_task(task, model, seed)
        self._flat = FlatModel(self.model)
        self._transfer = Transfer(self._flat, delta_wire, parameter_wire)
        self._transform = GradientTransform(self._flat, Plan.of_direction(self._flat, direction), clip_norm)
        self._local = LocalSteps(self._flat, (worker_step or WorkerStep()).with_direction(direction))
        self._delta_format = PayloadFormat(self._flat.layout, delta_wire)
        self._reply_format = PayloadFormat(self._flat.layout, parameter_wire)
        self._reply = np.frombuffer(self._transfer.reply, np.uint8)
        self._decoded = np.empty(self.layout.parameter_count, np.float32)

    @property
    def layout(self) -> Layout:
        """The model's layout."""
        return self._flat.layout

    def first(self) -> tuple[NDArray[np.float32], bytes]:
        """Initial parameters and BUFFERs."""
        payload = self._transfer.first_payload()
        count = self.layout.parameter_count
        parameters = np.frombuffer(payload, np.float32, count).copy()
        return parameters, bytes(payload[4 * count :])

    def hand(self, rank: int) -> Hand:
        """A new worker's state."""
        batches = batch_numbers(self._task.train, self._batch_size, self._seed, rank)
        random = torch.Generator().manual_seed(dropout_seed(self._seed, rank)).get_state()
        return Hand(batches, random, self._transform.new_state(), self._local.new_state())

    def step(self, hand: Hand, parameters: NDArray[np.float32], buffers: bytes, eta: float) -> tuple[Delta, int]:
        """Run one step; return its commit and the steps skipped before.

        `parameters`: s_w, rounded here to the wire type. Raises DivergedError after
        100 consecutive non-finite gradients.
        """
        torch.set_num_threads(1)  # Numba shares OpenMP with torch and resets its thread count
        self._install(parameters, buffers)
        if not self.model.training:  # train() visits every module
            self.model.train()
        for skipped in range(MAX_SKIPPED_IN_A_ROW):
            samples, loss = self._backward(hand)
            while not self._local.accumulate(eta, hand.local):
                more, loss = self._backward(hand)
                samples += more
            self._transform.direct(hand.transform)
            staged = self._transfer.stage(eta, loss)
            delta = self._received(staged.scale) if staged.usable else None
            self._flat.zero_gradients()  # only now, because a float32 delta lies where the gradients do
            if delta is not None:
                return Delta(delta, self._sent_buffers(), staged.loss, samples), skipped
            self._install(parameters, buffers)
        raise DivergedError(f"{MAX_SKIPPED_IN_A_ROW} gradients in a row were not finite: choose a smaller eta")

    def _backward(self, hand: Hand) -> tuple[int, torch.Tensor]:
        _, numbers = next(hand.batches)
        inputs, labels = self._task.train.batch(numbers)
        torch.set_rng_state(hand.random)
        loss = functional.cross_entropy(self.model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        hand.random = torch.get_rng_state()
        self._flat.collect_gradients()
        self._transform.clip()
        return len(labels), loss

    def score(self, samples: Samples, parameters: NDArray[np.float32], buffers: bytes) -> tuple[float, float]:
        """(mean loss, accuracy) over all samples."""
        torch.set_num_threads(1)
        self._flat.write_parameters(torch.from_numpy(parameters))
        if buffers:
            self._flat.buffers.write(torch.frombuffer(bytearray(buffers), dtype=torch.uint8))
        return score(self.model, samples, _CPU)

    def _install(self, parameters: NDArray[np.float32], buffers: bytes) -> None:
        split = self._reply_format.parameter_bytes
        self._reply[:split] = np.frombuffer(NUMPY.encode(self._reply_format.wire_type, parameters), np.uint8)
        self._reply[split:] = np.frombuffer(buffers, np.uint8)
        self._transfer.arrived()
        self._transfer.install()

    def _received(self, scale: float | None) -> NDArray[np.float32]:
        """Return the staged delta as the server has it, which applies the factor that a worker sends along."""
        encoded = self._transfer.delta[: self._delta_format.parameter_bytes]
        bad = NUMPY.decode(self._delta_format.wire_type, encoded, self._decoded)
        if bad is not None:
            raise BadValueError(f"element {bad.position} {bad.problem}")
        if scale is not None:
            np.multiply(self._decoded, np.float32(scale), out=self._decoded)
        return self._decoded

    def _sent_buffers(self) -> bytes:
        values = torch.empty(self._flat.buffers.byte_count, dtype=torch.uint8)
        self._flat.buffers.read(values)
        return values.numpy().tobytes()


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Restore torch's random state and threads on exit."""
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
