"""SIGTERM to a worker: commits that are whole are finished or given up in time, and the worker leaves."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from gem_worker.client import EventKind
from gem_worker.termination import termination
from torch import nn

from tests.terminations import default_handlers, ends_terminated, terminate
from tests.waiting import eventually
from tests.worker.loops import backward, train, worker_status
from tests.worker.serving import Processes, ServerThread, processes_in
from tests.worker.zoo import make

PATIENT = ClientSettings(connect_timeout=3600)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    with default_handlers():
        yield


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with processes_in(tmp_path) as started:
        yield started


def connect(address: str, model: nn.Module, **settings: Any) -> ParameterServer:
    return ParameterServer(address, model, **({"name": "w", "client_settings": PATIENT} | settings))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


@contextmanager
def two_by_turns(**settings: Any) -> Iterator[tuple[ServerThread, Callable[[int], None]]]:
    """A server whose other worker commits when it is asked to. The first turns are its, and are taken."""
    with ServerThread(order="round-robin", min_workers=2, rule="downpour", **settings) as server:
        asked, stop = threading.Semaphore(1), threading.Event()

        def work() -> None:
            with connect(server.address, make("perceptron"), name="other") as ps:
                while True:
                    asked.acquire()
                    if stop.is_set():
                        return
                    train(ps, 1)

        thread = threading.Thread(target=work)
        thread.start()
        eventually(lambda: server.server.sessions)
        try:
            yield server, lambda count: asked.release(count)
        finally:
            stop.set()
            asked.release()
            thread.join()


@contextmanager
def terminated_when_it_waits(ps: ParameterServer, then: Callable[[], object] = bool) -> Iterator[None]:
    """SIGTERM while `ps` waits for its turn."""
    ended = threading.Event()

    def act() -> None:
        eventually(lambda: ps.client.is_calling)
        terminate()
        eventually(lambda: termination.has_begun or ended.is_set())
        then()

    thread = threading.Thread(target=act)
    try:
        thread.start()
        yield
    finally:
        ended.set()
        thread.join()


def left_with(server: ServerThread, commits: int) -> bool:
    found = worker_status(server)
    return bool(found["state"] == "WORKER_STATE_LEFT" and int(found["commits"]) == commits)


def test_the_gradient_under_way_is_dropped_at_once() -> None:
    with ServerThread() as server:
        ps = connect(server.address, make("perceptron"))
        with ends_terminated(), ps:
            train(ps, 5)
            backward(ps.model)
            terminate()
            pytest.fail("the computation went on")
        assert left_with(server, 5)
    assert ps.applied_steps == 5


def test_a_commit_in_flight_is_finished() -> None:
    with two_by_turns() as (server, ask):
        ps = connect(server.address, make("perceptron"))
        with ends_terminated(), ps:
            train(ps, 1)  # the first reply says that the run is no longer WAITING
            with terminated_when_it_waits(ps, lambda: ask(2)):
                while True:
                    train(ps, 1)
        assert left_with(server, ps.applied_steps)
    assert ps.applied_steps >= 2


def test_a_commit_that_does_not_end_is_given_up() -> None:
    with two_by_turns() as (server, _):
        ps = connect(server.address, make("perceptron"))
        with ends_terminated(), ps:
            train(ps, 1)
            with terminated_when_it_waits(ps):
                train(ps, 1)
        assert left_with(server, 1)


@pytest.mark.parametrize("every", [4, 3])
def test_local_steps_are_committed(every: int) -> None:
    """Of 6, the last 2, or none."""
    with ServerThread(rule="downpour") as server:
        model = make("perceptron")
        ps = connect(server.address, model, optimizer=sgd(model), every=every)
        with ends_terminated(), ps:
            train(ps, 6)
            terminate()
        assert left_with(server, 2)
        central = torch.from_numpy(server.server.central.parameters)
        assert torch.equal(central, torch.cat([one.detach().flatten() for one in model.parameters()]))


def test_half_a_step_of_an_optimizer_is_not_committed() -> None:
    class HalfSGD(torch.optim.SGD):
        def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
            if group["lr"] == 0.25:
                terminate()
            return super()._init_group(group, *lists)

    model = make("perceptron")
    optimizer = HalfSGD(model.parameters(), lr=0.05)
    with ServerThread(rule="downpour") as server:
        ps = connect(server.address, model, optimizer=optimizer, every=4)
        with ends_terminated(), ps:
            train(ps, 5)
            optimizer.param_groups[0]["lr"] = 0.25
            backward(model)
            optimizer.step()
        assert left_with(server, 1)


def test_without_the_server_a_step_is_given_up() -> None:
    with ServerThread() as server:
        lost = EventKind.CONNECTION_LOST
        ps = connect(server.address, make("perceptron"), on_event=lambda event: event.kind is lost and terminate())
        with ends_terminated(), ps:
            train(ps, 5)
            server.stop()
            train(ps, 1)


def test_without_the_server_local_steps_are_given_up() -> None:
    with ServerThread() as server:
        model = make("perceptron")
        with ends_terminated(), connect(server.address, model, optimizer=sgd(model), every=4) as ps:
            train(ps, 5)
            server.stop()
            terminate()


@pytest.mark.parametrize("optimizer", [None, sgd])
def test_the_runs_begin_is_not_waited_for(optimizer: Any) -> None:
    with ServerThread(min_workers=2) as server:
        model = make("perceptron")
        ps = connect(server.address, model, optimizer=optimizer and optimizer(model))
        with ends_terminated(), ps, terminated_when_it_waits(ps):
            train(ps, 1)
        assert left_with(server, 0)


def test_a_join_ends_at_once_and_the_block_is_not_entered() -> None:
    with socket.socket() as silent:  # accepts, and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ps = connect(f"127.0.0.1:{silent.getsockname()[1]}", make("perceptron"))
        accepting = threading.Thread(target=lambda: (silent.accept(), terminate()))
        accepting.start()
        with ends_terminated(), ps:
            pytest.fail("it cannot join")
        accepting.join()


def test_other_handlers_are_left_alone() -> None:
    seen = []
    signal.signal(signal.SIGTERM, mine := lambda *_: seen.append(1))
    with ServerThread() as server, connect(server.address, make("perceptron")) as ps:
        train(ps, 2)
        terminate()
        eventually(lambda: seen)
        train(ps, 2)
        assert signal.getsignal(signal.SIGTERM) is mine
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_in_other_threads_nothing_is_handled() -> None:
    handlers: list[object] = []

    def work() -> None:
        with connect(server.address, make("perceptron")) as ps:
            handlers.append(signal.getsignal(signal.SIGTERM))
            train(ps, 2)

    with ServerThread() as server:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert left_with(server, 2)
    assert handlers == [signal.SIG_DFL]


@pytest.mark.long
def test_a_worker_that_waits_for_its_server_exits_with_0(processes: Processes) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        worker = processes.gemps("w", "work", f"127.0.0.1:{probe.getsockname()[1]}", "--device=cpu")
        worker.until_log_has("waiting-for-server")
        worker.terminate()
        assert worker.wait() == 0, worker.output
    assert "ended: terminated" in worker.output
    assert "Traceback" not in worker.output


SCRIPT = """
import os, signal, sys
import torch
from gem_worker import ParameterServer

model = torch.nn.Linear(4, 1)
with ParameterServer(sys.argv[1], model, name="w") as ps:
    for step in range(1000):
        loss = model(torch.ones(4)).pow(2).sum()
        loss.backward()
        ps.step(loss)
        if step == 20:
            os.kill(os.getpid(), signal.SIGTERM)
print("after the block")
"""


@pytest.mark.parametrize(
    ("environment", "code"), [({}, 0), pytest.param({"JOB_COMPLETION_INDEX": "0"}, 143, marks=pytest.mark.long)]
)
def test_a_script_leaves_and_exits(environment: dict[str, str], code: int, processes: Processes) -> None:
    with ServerThread() as server:
        script = processes.start("script", "-c", SCRIPT, server.address, **environment)
        assert (script.wait(), script.output) == (code, "")
        assert left_with(server, 21)
