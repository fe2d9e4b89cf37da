"""Every kind of model trains through shared memory as over the stream; the connection may end at any step.

Restarts, steps that are skipped and regions that are taken away: test_shared_memory.py.
"""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from gem_worker.client import ClientEvent, EventKind
from gemps.v1 import shared_memory_pb2
from torch import nn
from torch.nn import functional

from tests.waiting import eventually
from tests.wire.sharing import answer_to
from tests.worker.loops import backward
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
    loss = backward(ps.model, seed)
    report = ps.step(loss, samples=16)
    assert report.applied
    return loss.item()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(one.state_dict()[name], value) for name, value in other.state_dict().items())


def end_the_connection(ps: ParameterServer, path: Path) -> None:
    """By another one of the same session, which ends too."""
    assert ps.shares_memory
    request = shared_memory_pb2.SharedMemoryRequest(session_id=ps.client.session_id)
    answer, descriptors, connection = answer_to(path, request.SerializeToString())
    assert not answer.refused
    for descriptor in descriptors:
        os.close(descriptor)
    connection.close()
    eventually(lambda: not ps.shares_memory)


KINDS = ["perceptron", "batch-norm", "tied-weights", "channels-last", "float64"]


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_bit_for_bit_those_of_the_stream(kind: str, tmp_path: Path) -> None:
    streaming, sharing = make(kind), make(kind)
    for model, path in ((streaming, None), (sharing, tmp_path / "memory")):
        with session(model, path) as ps:
            assert ps.shares_memory == (path is not None)
            for seed in range(8):
                inputs, labels = a_batch(seed=seed)
                loss = functional.cross_entropy(model(inputs), labels)
                loss.backward()
                ps.step(loss)
    assert equal(streaming, sharing)


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
                end_the_connection(ps, tmp_path / "memory")
            step(ps, seed)
        assert not ps.shares_memory
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
                _end_before_the_next_commit(ps, tmp_path / "memory")
            step(ps, seed)
    assert equal(streaming, sharing)


def _end_before_the_next_commit(ps: ParameterServer, path: Path) -> None:
    commit = ps.client.commit

    def end_and_commit(*arguments: Any, **options: Any) -> Any:
        assert options["scale"] is not None
        end_the_connection(ps, path)
        ps.client.commit = commit  # type: ignore[method-assign]
        return commit(*arguments, **options)

    ps.client.commit = end_and_commit  # type: ignore[method-assign]


@pytest.mark.parametrize("is_offered", [True, False])
def test_a_narrow_type_that_does_without_offered_memory_is_told(is_offered: bool, tmp_path: Path) -> None:
    events: list[ClientEvent] = []
    with session(make("perceptron"), tmp_path / "memory" if is_offered else None, events, delta_wire="bfloat16") as ps:
        step(ps, 0)
        assert not ps.shares_memory
    assert [event.kind for event in events] == [EventKind.NOT_SHARED] * is_offered
    assert all("deltas are bfloat16 and parameters float32" in event.message for event in events)


def test_memory_that_is_not_for_this_user_is_passed_by_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's path may lie in a folder that others may not look into, here or on another machine."""
    events: list[ClientEvent] = []
    real = os.stat

    def stat(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path) == str(tmp_path / "memory"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **more)

    with ServerThread(shared_memory_socket=tmp_path / "memory") as server:
        monkeypatch.setattr(os, "stat", stat)
        with ParameterServer(
            server.address, make("perceptron"), name="w", on_event=events.append, delta_wire="bfloat16"
        ) as ps:
            step(ps, 0)
        monkeypatch.undo()
    assert events == []
