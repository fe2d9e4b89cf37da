"""The workers' side of a simulation: gradients of a real model on a real task, exactly as `gemps work` computes them.

One model serves all workers: what a worker computes follows from the parameters and buffers that it holds, its batch
and its random numbers, and those are put in before. Thus hundreds of workers need the memory of one model, and what the
server keeps of them. Scaling, judging, encoding and decoding are gem_worker's own (transfer.py), so that a step gives
the same bytes as that of a worker's process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from gem_worker.errors import MAX_SKIPPED_IN_A_ROW, Diverged
from gem_worker.flat_model import FlatModel
from gem_worker.local_steps import LocalSteps
from gem_worker.models import create_model
from gem_worker.scoring import score
from gem_worker.seeds import dropout_seed
from gem_worker.tasks import Samples, Task, batch_numbers
from gem_worker.transfer import Transfer
from numpy.typing import NDArray
from torch.nn import functional

from gem_core import BadValueError, Layout, PayloadFormat, WireType
from gem_core.rules import WorkerStep
from gem_core.wire_types import NUMPY

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step of a worker commits.

    values: float32[parameter_count], as the server decodes it; overwritten by the next step of any worker.
    buffers: the model's BUFFERs after the step.
    loss: of the batch, the last one where there were local steps; None: it is not finite.
    samples: in the batches.
    """

    values: NDArray[np.float32]
    buffers: bytes
    loss: float | None
    samples: int


class Hand:
    """One worker's place in its data and its random numbers."""

    def __init__(self, batches: Iterator[tuple[int, NDArray[np.int64]]], random: torch.Tensor) -> None:
        self.batches = batches
        self.random = random


class Workload:
    """A task and a model.

    Args:
        task, model: as in gem_worker; `model` is a name.
        batch_size: samples a step.
        seed: of the run: of first parameters, order of samples, and dropout.
        delta_wire, parameter_wire: types in which deltas and parameters travel.
        worker_step: what a worker does between two commits: one step unless told otherwise.

    Raises TaskError for a model that does not fit.
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
    ) -> None:
        self._task = task
        self._batch_size = batch_size
        self._seed = seed
        self.model = create_model(model, task.input_shape, task.classes, seed)
        self._flat = FlatModel(self.model)
        self._transfer = Transfer(self._flat, delta_wire, parameter_wire)
        own = worker_step or WorkerStep()
        self._local = LocalSteps(self._flat, own.local_steps, normalise=own.normalise)
        self._delta_format = PayloadFormat(self._flat.layout, delta_wire)
        self._reply_format = PayloadFormat(self._flat.layout, parameter_wire)
        self._reply = np.frombuffer(self._transfer.reply, np.uint8)
        self._decoded = np.empty(self.layout.parameter_count, np.float32)

    @property
    def layout(self) -> Layout:
        """Of the model."""
        return self._flat.layout

    def first(self) -> tuple[NDArray[np.float32], bytes, bytes]:
        """The parameters with which the run begins, its BUFFERs and its CONSTANTs."""
        payload = self._transfer.first_payload()
        count = self.layout.parameter_count
        split = 4 * count + self.layout.buffer_bytes
        parameters = np.frombuffer(payload, np.float32, count).copy()
        return parameters, bytes(payload[4 * count : split]), bytes(payload[split:])

    def hand(self, rank: int) -> Hand:
        """Of a worker that begins."""
        batches = batch_numbers(len(self._task.train), self._batch_size, self._seed, rank)
        random = torch.Generator().manual_seed(dropout_seed(self._seed, rank)).get_state()
        return Hand(batches, random)

    def step(self, hand: Hand, parameters: NDArray[np.float32], buffers: bytes, eta: float) -> tuple[Delta, int]:
        """One step of a worker that holds these parameters: what it commits, and how many steps it skipped before.

        Args:
            hand: the worker's, which moves on.
            parameters: s_w, unrounded; the worker has them as they arrive in its wire type.
            buffers: that came with them.
            eta: the learning rate.

        Raises Diverged: 100 gradients in a row were not finite.
        """
        torch.set_num_threads(1)  # again: Numba's kernels share OpenMP with torch, and set its number of threads
        self._install(parameters, buffers)
        if not self.model.training:  # it visits every module, which takes a tenth of a small model's step
            self.model.train()
        for skipped in range(MAX_SKIPPED_IN_A_ROW):
            samples, loss = self._backward(hand)
            while not self._local.take(eta):
                more, loss = self._backward(hand)
                samples += more
            staged = self._transfer.stage(eta, loss)
            self._flat.zero_gradients()
            if staged.usable:
                return Delta(self._received(), self._sent_buffers(), staged.loss, samples), skipped
            self._install(parameters, buffers)
        raise Diverged(f"{MAX_SKIPPED_IN_A_ROW} gradients in a row were not finite: choose a smaller eta")

    def _backward(self, hand: Hand) -> tuple[int, torch.Tensor]:
        """The gradient of the worker's next batch is there; gives the batch's size and its loss."""
        _, numbers = next(hand.batches)
        inputs, labels = self._task.train.batch(numbers)
        torch.set_rng_state(hand.random)
        loss = functional.cross_entropy(self.model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        hand.random = torch.get_rng_state()
        self._flat.collect_gradients()
        return len(labels), loss

    def score(self, samples: Samples, parameters: NDArray[np.float32], buffers: bytes) -> tuple[float, float]:
        """(mean loss, accuracy) of the central variable over all samples; nothing is rounded."""
        torch.set_num_threads(1)
        self._flat.write_parameters(torch.from_numpy(parameters))
        if buffers:
            self._flat.buffer_bytes.copy_(torch.frombuffer(bytearray(buffers), dtype=torch.uint8))
        return score(self.model, samples, _CPU)

    def _install(self, parameters: NDArray[np.float32], buffers: bytes) -> None:
        split = self._reply_format.parameter_bytes
        self._reply[:split] = np.frombuffer(NUMPY.encode(self._reply_format.wire_type, parameters), np.uint8)
        self._reply[split:] = np.frombuffer(buffers, np.uint8)
        self._transfer.arrived()
        self._transfer.install()

    def _received(self) -> NDArray[np.float32]:
        encoded = self._transfer.delta[: self._delta_format.parameter_bytes]
        bad = NUMPY.decode(self._delta_format.wire_type, encoded, self._decoded)
        if bad is not None:
            raise BadValueError(f"element {bad.position} {bad.problem}")
        return self._decoded

    def _sent_buffers(self) -> bytes:
        return bytes(self._transfer.delta[self._delta_format.parameter_bytes :])


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Afterwards torch has the random numbers and the threads again that it had before."""
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
