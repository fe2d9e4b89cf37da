"""What `overlap.py` measures: how long steps take, and what is learned, with overlap and without."""

import multiprocessing
import select
import socket
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from gem_worker import ClientSettings, ParameterServer
from gem_worker.models import create_model
from gem_worker.tasks import Task, create_task, training_batches
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from benchmarks.harness.processes import processor_seconds
from benchmarks.served import serve

WAYS = (False, True)
WARM_UP_STEPS = 3
PATIENT = ClientSettings(connect_timeout=300)


# --- how long steps take


@dataclass(frozen=True)
class Case:
    """A model of `layers` square layers of `width`, a batch, and a way to the server.

    `delay`: milliseconds that a byte is under way, each way, beside what the machine takes.
    """

    name: str
    width: int
    layers: int
    batch: int
    workers: int = 1
    delay: float = 0.0
    shared: bool = False

    @property
    def parameters(self) -> int:
        """Of the model."""
        return self.layers * (self.width * self.width + self.width)

    def model(self) -> nn.Module:
        """It, with the same parameters each time."""
        torch.manual_seed(0)
        blocks = [(nn.Linear(self.width, self.width), nn.ReLU()) for _ in range(self.layers)]
        return nn.Sequential(*(module for block in blocks for module in block))


@dataclass(frozen=True)
class Block:
    """Some seconds of one way: of a worker, or of all on average.

    step, waited: milliseconds of a step, and those of them in which the loop waited for an answer.
    cpu: milliseconds of processor time that the worker and its part of the server took a step.
    """

    step: float
    waited: float
    cpu: float


def measure(case: Case, rounds: int, seconds: float) -> dict[bool, list[Block]]:
    """For each way (with overlap or without) a block a round. The ways take turns, and who is first does, too."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-bench-")))
        flags = [f"--min-workers={case.workers}", "--eta=1e-6"]
        if case.shared:
            flags.append(f"--shared-memory-socket={folder / 'memory'}")
        served = stack.enter_context(serve(folder, *flags))
        address = stack.enter_context(delayed(served.address, case.delay)) if case.delay else served.address
        manager = stack.enter_context(spawn.Manager())
        pool = stack.enter_context(spawn.Pool(case.workers))
        barrier = manager.Barrier(case.workers + 1)
        arguments = [(case, address, number, rounds, seconds, barrier) for number in range(case.workers)]
        working = pool.starmap_async(_work, arguments, chunksize=1)
        server_cpu: list[tuple[bool, float]] = []
        for way in _turns(rounds):
            barrier.wait()
            before = processor_seconds([served.process.pid])
            barrier.wait()
            server_cpu.append((way, processor_seconds([served.process.pid]) - before))
        of_workers = working.get()
    found: dict[bool, list[Block]] = {way: [] for way in WAYS}
    for number, (way, cpu) in enumerate(server_cpu):
        steps, *sums = (sum(values) for values in zip(*(blocks[number] for blocks in of_workers), strict=True))
        elapsed, waited, worker_cpu = (1000 * value / steps for value in sums)
        found[way].append(Block(elapsed, waited, worker_cpu + 1000 * cpu / steps))
    return found


def _turns(rounds: int) -> Iterator[bool]:
    for number in range(rounds):
        yield from WAYS if number % 2 == 0 else WAYS[::-1]


def _work(
    case: Case, address: str, number: int, rounds: int, seconds: float, barrier: Barrier
) -> list[tuple[int, float, float, float]]:
    """One worker process: steps, seconds, seconds waited and processor seconds of each block."""
    torch.set_num_threads(1)
    inputs = torch.randn(case.batch, case.width)
    done = []
    with ExitStack() as stack:
        sessions = {}
        for way in WAYS:
            model = case.model()
            name = f"{number}-{'overlap' if way else 'in-turn'}"
            session = ParameterServer(address, model, name=name, overlap=way, client_settings=PATIENT)
            sessions[way] = stack.enter_context(session), model
        for way in _turns(rounds):
            ps, model = sessions[way]
            for _ in range(WARM_UP_STEPS):
                _step(ps, model, inputs)
            barrier.wait()
            steps, waited, cpu, began = 0, 0.0, time.process_time(), time.perf_counter()
            while (elapsed := time.perf_counter() - began) < seconds:
                waited += _step(ps, model, inputs)
                steps += 1
            done.append((steps, elapsed, waited, time.process_time() - cpu))
            barrier.wait()
    return done


def _step(ps: ParameterServer, model: nn.Module, inputs: torch.Tensor) -> float:
    model(inputs).square().mean().backward()
    return ps.step().exchange_seconds


@contextmanager
def delayed(address: str, milliseconds: float) -> Iterator[str]:
    """A proxy process before `address` that holds every byte back for so long, each way."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_forward, args=(address, milliseconds / 1000, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _forward(address: str, delay: float, told: Connection) -> None:
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    told.send(f"127.0.0.1:{listener.getsockname()[1]}")
    others: dict[socket.socket, socket.socket] = {}
    late: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        until = max(0.0, late[0][0] - time.perf_counter()) if late else None
        for one in select.select([listener, *others], [], [], until)[0]:
            if one is listener:
                client, server = listener.accept()[0], socket.create_connection((host, int(port)))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                others |= {client: server, server: client}
                continue
            data = b""
            with suppress(OSError):
                data = one.recv(1 << 18)
            late.append((time.perf_counter() + delay, others[one], data))
            if not data:
                del others[one]
        while late and late[0][0] <= time.perf_counter():
            _, target, data = late.popleft()
            with suppress(OSError):
                target.sendall(data) if data else target.shutdown(socket.SHUT_WR)


# --- what is learned


@dataclass(frozen=True)
class Learned:
    """The end of a run on digits: the loss over the training set, and the accuracy on what was held out."""

    loss: float
    accuracy: float
    staleness: float


def learn(task: Task, workers: int, steps: int, order: str, eta: float, seed: int, *, overlap: bool) -> Learned:
    """One run with workers on threads of this process: ordinary training loops with the real client library."""
    model = create_model("mlp", task.input_shape, task.classes, seed=0)
    with tempfile.TemporaryDirectory(prefix="gemps-bench-") as name:
        data = Path(name) / "data"
        flags = [f"--order={order}", f"--min-workers={workers}", f"--steps={steps}", f"--seed={seed}", f"--eta={eta}"]
        with serve(Path(name), *flags, "--set=limits.threads=1", f"--data-dir={data}", "--durability=none") as served:
            loops = [_Loop(number, served.address, task, seed, overlap) for number in range(workers)]
            for loop in loops:
                loop.start()
            for loop in loops:
                loop.join()
                if loop.error is not None:
                    raise loop.error
        model.load_state_dict(load_file(data / "latest" / "model.safetensors"))
    (inputs, labels), (held_out, truth) = (next(training_batches(s, len(s), 0, 0))[1] for s in (task.train, task.test))
    with torch.no_grad():
        loss = functional.cross_entropy(model(inputs), labels).item()
        accuracy = (model(held_out).argmax(1) == truth).double().mean().item()
    return Learned(loss, accuracy, statistics.mean(value for loop in loops for value in loop.staleness))


class _Loop(threading.Thread):
    def __init__(self, number: int, address: str, task: Task, seed: int, overlap: bool) -> None:
        super().__init__()
        self._task = task
        self._model = create_model("mlp", task.input_shape, task.classes, seed)
        self._session = ParameterServer(
            address, self._model, name=f"worker-{number:03d}", overlap=overlap, client_settings=PATIENT
        )
        self.staleness: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            with self._session as ps:
                for _, (inputs, labels) in training_batches(self._task.train, 64, ps.run_settings.seed, ps.rank):
                    loss = functional.cross_entropy(self._model(inputs), labels)
                    loss.backward()  # type: ignore[no-untyped-call]
                    verdict = ps.step(loss).verdict
                    if verdict is not None:
                        self.staleness.append(verdict.staleness)
        except BaseException as error:
            self.error = error


def digits() -> Task:
    """The task."""
    return create_task("digits")
