"""Warnings for scripts whose steps do nothing: gradients that are missing, and parameters that no optimizer has."""

import copy
import logging
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from torch import nn
from torch.optim import SGD, AdamW

from tests.worker.loops import backward, train
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

IMPATIENT = ClientSettings(connect_timeout=20)
WAYS: dict[str, dict[str, Any]] = {"plain": {}, "local steps": {}}


@pytest.fixture(autouse=True)
def _warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def serve(way: str = "plain", **settings: Any) -> ServerThread:
    return ServerThread(**({"local_steps": 2} if way == "local steps" else {}), **settings)


def connect(server: ServerThread, model: nn.Module, way: str = "plain", **settings: Any) -> ParameterServer:
    return ParameterServer(server.address, model, name="w", client_settings=IMPATIENT, **WAYS[way], **settings)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("way", WAYS)
def test_steps_without_backward_are_warned_of_once(way: str, caplog: pytest.LogCaptureFixture) -> None:
    with serve(way) as server, connect(server, make("perceptron"), way) as ps:
        for _ in range(10):
            ps.step()
    (warning,) = said(caplog)
    assert "no backward pass has reached the model" in warning
    assert "loss.backward()" in warning


@pytest.mark.parametrize("order", ["another model", "zero_grad between", "detached after some steps"])
def test_gradients_that_never_arrive_are_warned_of_once(order: str, caplog: pytest.LogCaptureFixture) -> None:
    model = make("batch-norm")
    with serve() as server, connect(server, model) as ps:
        other = copy.deepcopy(model)
        if order == "detached after some steps":
            train(ps, 3)
        for _ in range(6):
            if order == "another model":
                backward(other)
            elif order == "zero_grad between":
                backward(model)
                model.zero_grad()
            ps.step()
    (warning,) = said(caplog)
    assert "no backward pass has reached the model" in warning


def test_gradients_that_are_zeroed_in_place_are_warned_of_after_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    model = make("perceptron")
    with serve() as server, connect(server, model) as ps:
        for step in range(60):
            assert bool(said(caplog)) == (step >= 50)
            backward(model)
            model.zero_grad(set_to_none=False)
            ps.step()
    (warning,) = said(caplog)
    assert "exactly 0 in the last 50 steps" in warning


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_zero_for_good_reasons_is_not_warned_of(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loss whose gradient is 0 for many steps, and a batch that is left out now and then."""
    model = make("perceptron")
    with serve(way) as server, connect(server, model, way) as ps:
        for _ in range(2):
            for _ in range(20):
                (sum_of_parameters(model) * 0.0).backward()
                ps.step()
            train(ps, 2)
            ps.step()
            train(ps, 2)
    assert not said(caplog)


def test_a_warm_up_that_begins_with_a_learning_rate_of_0_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = make("perceptron")
    optimizer = SGD(model.parameters(), 0.0)
    with serve(rule="adaptive-staleness") as server, connect(server, model, optimizer=optimizer) as ps:
        train(ps, 5)
        optimizer.param_groups[0]["lr"] = 0.1
        train(ps, 2)
    assert not said(caplog)


def sum_of_parameters(model: nn.Module) -> torch.Tensor:
    return torch.stack([one.sum() for one in model.parameters()]).sum()


def test_a_model_part_that_gets_no_gradient_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    with serve() as server, connect(server, model) as ps:
        for _ in range(8):
            model[1](torch.ones(1, 4)).sum().backward()
            ps.step()
    assert not said(caplog)


def test_an_optimizer_that_moves_nothing_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    model = make("perceptron")
    optimizer = SGD(model.parameters(), 0.1)
    with serve(rule="adaptive-staleness") as server, connect(server, model, optimizer=optimizer) as ps:
        train(ps, 2)
        for _ in range(8):
            ps.step()
    (warning,) = said(caplog)
    assert "the optimizer has moved no parameter" in warning


def test_parameters_that_no_group_of_the_optimizer_has_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(64, 8), *(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 10))
    optimizer = AdamW(model[0].parameters())
    with serve(rule="adaptive-staleness") as server, connect(server, model, optimizer=optimizer, every=2) as ps:
        for _ in range(8):
            model(torch.ones(1, 64)).sum().backward()
            ps.step()
    (warning,) = said(caplog)
    assert "AdamW holds 2 of the model's 10 parameter tensors" in warning
    assert "1.weight, 1.bias, 2.weight, 2.bias, 3.weight and 3 more" in warning


def test_parameters_of_a_second_optimizer_and_frozen_ones_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 1)])
    model[2].requires_grad_(False)
    first, second = (SGD(one.parameters(), 0.1) for one in model[:2])
    with serve(rule="adaptive-staleness") as server, connect(server, model, optimizer=first) as ps:
        for _ in range(3):
            sum(one(torch.ones(1, 4)).sum() for one in model).backward()
            first.step()
            second.step()
            ps.exchange()
    assert not said(caplog)
