"""Narrow wire types learn as well as float32: 30 workers on digits, in round-robin order.

The full form (GEMPS_TEST_FULL=1) trains against a real server, the short one in the simulator, which gives the
same parameters bit for bit (tests/simulator/test_one_system.py holds it to that, with narrow types). In round-robin
order a run follows from its seed alone, so a ratio of two final losses is a fixed figure and no lottery. Steps and
batches are chosen so that the figure can tell: a server that took the rounded parameters for what the worker holds
would count rounding errors as drift, which eats up the energy as soon as gradients are small (docs/design.md, 2),
and large batches have small gradients early. With that mistake made on purpose, parameters in bfloat16 ended after 300
steps (three seeds) at 1.50 to 1.61 times float32's loss. Without it ratios are within 0.02 of 1.
"""

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from gem_simulator import SimulationSettings, simulate
from gem_worker import ClientSettings, Membership, ParameterServer
from gem_worker.client import RunState
from gem_worker.models import create_model
from gem_worker.settings import WireName
from gem_worker.tasks import Task, create_task, training_batches
from safetensors.torch import load_file
from torch.nn import functional

from tests.figures import Figures
from tests.forms import FULL
from tests.worker.serving import PATIENCE, processes_in

WORKERS = 30
BATCH_SIZE = 256
ETA = 0.1
LIMIT = 1.3
# Of the 2.3 that guessing costs.
LEARNED = 0.1
# More seeds and pairs, and a real server; the short form has one pair, of both ways at once.
STEPS = 300
SEEDS = (0, 1, 2) if FULL else (1,)

Pair = tuple[WireName, WireName]  # of deltas, of parameters
PAIRS: list[Pair] = [("bfloat16", "bfloat16")]
if FULL:
    PAIRS += [("bfloat16", "float32"), ("float32", "bfloat16")]


class Worker(threading.Thread):
    """One of the run's workers, on a thread: an ordinary training loop with the real client library."""

    def __init__(self, number: int, address: str, task: Task, pair: Pair, seed: int) -> None:
        super().__init__(name=f"worker-{number}")
        self._task = task
        self._pair = pair
        self._model = create_model("mlp", task.input_shape, task.classes, seed)
        self._session = ParameterServer(
            address,
            self._model,
            name=f"worker-{number}",
            delta_wire=pair[0],
            parameter_wire=pair[1],
            on_join=self._check_wire_types,
            client_settings=ClientSettings(connect_timeout=PATIENCE),
        )
        self.error: BaseException | None = None
        self.steps = 0

    def _check_wire_types(self, membership: Membership) -> None:
        settled = membership.delta_wire_type.name, membership.parameter_wire_type.name
        assert settled == tuple(name.upper() for name in self._pair)

    def run(self) -> None:
        torch.set_num_threads(1)  # a setting of each thread
        try:
            with self._session as ps:
                seed = ps.run_settings.seed
                for _, (inputs, labels) in training_batches(self._task.train, BATCH_SIZE, seed, ps.rank):
                    loss = functional.cross_entropy(self._model(inputs), labels)
                    loss.backward()  # type: ignore[no-untyped-call]
                    ps.step(loss, samples=len(labels))
            assert ps.run_state is RunState.FINISHED
            self.steps = ps.applied_steps
        except BaseException as error:
            self.error = error


def training_loss(task: Task, checkpoint: Path) -> float:
    """Over the whole training set, of the parameters that the server holds in the end."""
    model = create_model("mlp", task.input_shape, task.classes, seed=0)
    model.load_state_dict(load_file(checkpoint))
    _, (inputs, labels) = next(training_batches(task.train, len(task.train), seed=0, rank=0))
    with torch.no_grad():
        return functional.cross_entropy(model(inputs), labels).item()


def train(folder: Path, task: Task, pair: Pair, seed: int) -> float:
    """A whole run, with its files in `folder`; returns its final training loss."""
    return train_for_real(folder, task, pair, seed) if FULL else simulated(task, pair, seed)


def simulated(task: Task, pair: Pair, seed: int) -> float:
    settings = SimulationSettings(
        workers=WORKERS, order="round-robin", steps=STEPS, seed=seed, eta=ETA, batch_size=BATCH_SIZE, model="mlp",
        delta_wire=pair[0], parameter_wire=pair[1],
    )  # fmt: skip
    result = simulate(settings, task=task)
    assert result.commits == WORKERS * STEPS
    return result.final.training_loss


def train_for_real(folder: Path, task: Task, pair: Pair, seed: int) -> float:
    with processes_in(folder) as processes:
        server, address = processes.serve(
            "--order=round-robin", f"--min-workers={WORKERS}", f"--steps={STEPS}", f"--seed={seed}", f"--eta={ETA}",
            "--checkpoint-interval=0", "--set=limits.threads=1",
        )  # fmt: skip
        workers = [Worker(number, address, task, pair, seed) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
        assert [worker.error for worker in workers] == [None] * WORKERS
        assert [worker.steps for worker in workers] == [STEPS] * WORKERS
        assert server.wait() == 0, server.output
        return training_loss(task, processes.checkpoint)


@pytest.fixture(scope="module")
def float32_loss(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Task, int], float]:
    """The final loss of a seed's run with float32 both ways, which is made once."""

    @cache
    def loss(task: Task, seed: int) -> float:
        return train(tmp_path_factory.mktemp("float32"), task, ("float32", "float32"), seed)

    return loss


@pytest.fixture(scope="module")
def digits() -> Task:
    return create_task("digits")


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_narrow_wire_type_costs_next_to_nothing_in_training_loss(
    pair: Pair, seed: int, digits: Task, float32_loss: Callable[[Task, int], float], tmp_path: Path, figures: Figures
) -> None:
    reference = float32_loss(digits, seed)
    assert reference < LEARNED, "the runs are too short to tell anything"
    loss = train(tmp_path, digits, pair, seed)
    figures(
        f"{WORKERS} workers, deltas in {pair[0]}, parameters in {pair[1]}",
        f"final training loss {loss:.5f}, {loss / reference:.3f} times float32's (seed {seed}, {STEPS} steps)",
    )
    assert loss <= LIMIT * reference
