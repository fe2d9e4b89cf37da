"""Training through shared memory: bit for bit what training over the stream gives, whatever becomes of the memory."""

import copy
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from gem_worker.client import ClientEvent, EventKind
from torch import Tensor, nn
from torch.nn import functional

from tests.worker.serving import ServerThread
from tests.worker.zoo import a_batch, make

pytestmark = pytest.mark.skipif(not hasattr(socket, "recv_fds"), reason="no descriptors can be passed here")


@pytest.fixture(autouse=True)
def small_models_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)


@contextmanager
def session(
    model: nn.Module, path: Path | None, events: list[ClientEvent] | None = None, **settings: Any
) -> Iterator[ParameterServer]:
    """One worker of a server of its own."""
    with (
        ServerThread(shared_memory_socket=path) as server,
        ParameterServer(
            server.address,
            model,
            name="w",
            on_event=(events if events is not None else []).append,
            client_settings=ClientSettings(connect_timeout=20),
            **settings,
        ) as ps,
    ):
        yield ps


def step(ps: ParameterServer, seed: int) -> float:
    inputs, labels = a_batch(seed=seed)
    loss = functional.cross_entropy(ps.model(inputs), labels)
    loss.backward()
    report = ps.step(loss, samples=16)
    assert report.applied
    return loss.item()


def gradient_memory(model: nn.Module) -> int:
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient.data_ptr()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(one.state_dict()[name], value) for name, value in other.state_dict().items())


def end_the_connection(ps: ParameterServer) -> None:
    """What a server does that lets go of the regions."""
    shared = ps._client._session.open_shared()
    assert shared is not None
    shared._socket.shutdown(socket.SHUT_RDWR)


KINDS = ["perceptron", "batch-norm", "tied-weights", "channels-last", "float64"]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_bit_for_bit_those_of_the_stream(kind: str, overlap: bool, tmp_path: Path) -> None:
    streaming, sharing = make(kind), make(kind)
    for model, path in ((streaming, None), (sharing, tmp_path / "memory")):
        with session(model, path, overlap=overlap) as ps:
            assert (ps._client.shared_delta is not None) == (path is not None)
            for seed in range(8):
                inputs, labels = a_batch(seed=seed)
                loss = functional.cross_entropy(model(inputs), labels)
                loss.backward()
                ps.step(loss)
    assert equal(streaming, sharing)


def test_a_plain_models_gradients_lie_in_shared_memory(tmp_path: Path) -> None:
    model = make("perceptron")
    with session(model, tmp_path / "memory") as ps:
        step(ps, 0)
        delta = ps._client.shared_delta
        assert delta is not None
        assert gradient_memory(model) == torch.frombuffer(delta, dtype=torch.uint8).data_ptr()
        assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_connection_may_end_between_any_two_steps(kind: str, tmp_path: Path) -> None:
    streaming, sharing = make(kind), make(kind)
    with session(streaming, None) as ps:
        for seed in range(6):
            step(ps, seed)
    events: list[ClientEvent] = []
    with session(sharing, tmp_path / "memory", events) as ps:
        for seed in range(6):
            if seed == 3:
                end_the_connection(ps)
            step(ps, seed)
        assert ps._client.shared_delta is None
    assert equal(streaming, sharing)
    assert [event.kind for event in events] == [EventKind.NOT_SHARED]


def test_it_may_end_between_the_gradient_and_its_commit(tmp_path: Path) -> None:
    """The gradient then lies in memory that nobody shares any more, and travels as chunks, scaled here."""
    streaming, sharing = make("perceptron"), make("perceptron")
    with session(streaming, None) as ps:
        for seed in range(4):
            step(ps, seed)
    with session(sharing, tmp_path / "memory") as ps:
        for seed in range(4):
            if seed == 2:
                _end_before_the_next_commit(ps)
            step(ps, seed)
    assert equal(streaming, sharing)


def _end_before_the_next_commit(ps: ParameterServer) -> None:
    commit = ps._client.commit

    def end_and_commit(*arguments: Any, **options: Any) -> Any:
        assert options["scale"] is not None
        end_the_connection(ps)
        ps._client.commit = commit  # type: ignore[method-assign]
        return commit(*arguments, **options)

    ps._client.commit = end_and_commit  # type: ignore[method-assign]


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def _renew(parameter: Tensor) -> None:
    parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("change", [_drop, _renew])
def test_gradients_that_the_loop_replaces_are_collected(change: Callable[[Tensor], None], tmp_path: Path) -> None:
    streaming, sharing = make("perceptron"), make("perceptron")
    for model, path in ((streaming, None), (sharing, tmp_path / "memory")):
        with session(model, path) as ps:
            for seed in range(4):
                for parameter in model.parameters():
                    change(parameter)
                step(ps, seed)
    assert equal(streaming, sharing)


def test_several_backwards_add_up(tmp_path: Path) -> None:
    streaming, sharing = make("perceptron"), make("perceptron")
    for model, path in ((streaming, None), (sharing, tmp_path / "memory")):
        with session(model, path) as ps:
            for seed in range(4):
                inputs, labels = a_batch(seed=seed + 100)
                functional.cross_entropy(model(inputs), labels).backward()
                step(ps, seed)
    assert equal(streaming, sharing)


def test_a_gradient_that_is_not_finite_costs_its_step_only(tmp_path: Path) -> None:
    model = make("batch-norm")
    with session(model, tmp_path / "memory") as ps:
        step(ps, 0)
        before = copy.deepcopy(model.state_dict())
        inputs, labels = a_batch(seed=1)
        (functional.cross_entropy(model(inputs), labels) * float("inf")).backward()
        report = ps.step()
        assert (report.skipped, report.applied, ps.skipped_steps) == (True, False, 1)
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
        step(ps, 2)
        assert ps._client.shared_delta is not None
