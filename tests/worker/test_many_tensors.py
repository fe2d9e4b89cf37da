"""A step costs the interpreter as much with many tensors as with few: loops over tensors run in C.

Events of the interpreter are counted, not seconds.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from torch import nn

from tests.worker.serving import ServerThread

IMPATIENT = ClientSettings(connect_timeout=20)
FEW, MANY = 20, 1000


@contextmanager
def worker(model: nn.Module, **settings: Any) -> Iterator[ParameterServer]:
    with (
        ServerThread(eta=0.01, rule="downpour") as server,
        ParameterServer(server.address, model, name="w", client_settings=IMPATIENT, **settings) as ps,
    ):
        yield ps


def events_of(work: Callable[[], object]) -> int:
    """Calls that the interpreter makes, of Python functions and of functions in C."""
    count = 0

    def observe(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(observe)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def fewest_events(ps: ParameterServer, before: Callable[[], object] = lambda: None) -> int:
    """Of a few steps: now and then one sends a heartbeat or takes a sample."""
    counts = []
    for _ in range(4):
        before()
        counts.append(events_of(ps.step))
    return min(counts)


def parameters(count: int) -> nn.Module:
    return nn.ParameterList(nn.Parameter(torch.ones(3)) for _ in range(count))


def modules(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(1, 2) for _ in range(count)))


def frozen(count: int) -> nn.Module:
    model = parameters(count)
    for parameter in list(model.parameters())[1:]:
        parameter.requires_grad_(False)
    return model


def narrow(count: int) -> nn.Module:
    return parameters(count).bfloat16()


@pytest.mark.parametrize("make", [parameters, modules, frozen, narrow])
def test_a_step_makes_as_many_calls_with_many_tensors_as_with_few(make: Callable[[int], nn.Module]) -> None:
    counts = []
    for number in (FEW, MANY):
        with worker(make(number)) as ps:
            counts.append(fewest_events(ps))
    assert counts[1] < counts[0] + FEW


def test_a_commit_of_an_optimizer_makes_as_many_calls_with_many_tensors_as_with_few() -> None:
    counts = []
    for number in (FEW, MANY):
        model = parameters(number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with worker(model, optimizer=optimizer) as ps:
            ps.exchange()
            counts.append(min(events_of(ps.exchange) for _ in range(4)))
    assert counts[1] < counts[0] + FEW


def test_gradients_that_autograd_made_anew_are_gathered_without_a_copy_for_each_tensor() -> None:
    """A few calls remain for each tensor, whose gradient has to be assigned."""
    counts = []
    for number in (FEW, MANY):
        model = parameters(number)
        with worker(model) as ps:

            def backward(model: nn.Module = model) -> None:
                model.zero_grad()
                torch.cat(list(model.parameters())).sum().backward()

            counts.append(fewest_events(ps, backward))
        for parameter in model.parameters():
            torch.testing.assert_close(parameter, torch.full((3,), 1 - 0.04))
    assert counts[1] - counts[0] < 16 * (MANY - FEW)
