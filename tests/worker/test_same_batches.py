"""The server's status names workers that train on the same batches."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, Observer, ParameterServer
from gem_worker.batch_watch import FIRST_COMMITS, BatchWatch
from torch import Tensor, nn
from torch.optim import SGD

from tests.worker.loops import backward
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

IMPATIENT = ClientSettings(connect_timeout=20)


def connect(server: ServerThread, name: str, model: nn.Module, **settings: Any) -> ParameterServer:
    optimizer = {"optimizer": SGD(model.parameters(), 0.1)} if settings.get("every") else {}
    fields = {"name": name, "client_settings": IMPATIENT} | settings | optimizer
    ps = ParameterServer(server.address, model, **fields)
    ps.join()
    return ps


def problems_of(server: ServerThread) -> list[dict[str, Any]]:
    """What the server finds when it looks now."""
    server.run(look(server))
    with Observer(server.address) as observer:
        found: list[dict[str, Any]] = observer.get_status()["problems"]
    return [one for one in found if one["kind"] == "same-batches"]


async def look(server: ServerThread) -> None:
    server.server.problem_watch.look()


@pytest.mark.parametrize("settings", [{}, {"every": 2}], ids=["plain", "optimizer"])
def test_workers_with_the_same_batches_are_named_and_others_are_not(settings: dict[str, Any]) -> None:
    """The warning does not depend on when the workers join."""
    rule = {"rule": "adaptive-staleness"} if settings.get("every") else {}
    with ServerThread(**rule) as server:
        for index, seed in enumerate([100, 200, 100, 300, 100]):
            ps = connect(server, f"w{index}", make("batch-norm", index), **settings)
            for step in range(2 * FIRST_COMMITS + 2):
                ps.step(backward(ps.model, seed + step))
            ps.close()
        (problem,) = problems_of(server)
    assert problem["severity"] == "PROBLEM_SEVERITY_WARNING"
    assert problem["workers"] == ["w0", "w2", "w4"]
    assert "ps.rank" in problem["fix"]


def test_workers_whose_inputs_never_change_are_not_warned_of() -> None:
    with ServerThread() as server:
        for index in range(2):
            ps = connect(server, f"w{index}", make("perceptron", index))
            for _ in range(FIRST_COMMITS + 1):
                ps.step(backward(ps.model))
            ps.close()
        assert not problems_of(server)


def reported(model: nn.Module, *calls: Any) -> tuple[int, ...] | None:
    """What is reported after a commit for each of the calls."""
    watch = BatchWatch(model)
    found = None
    for call in calls:
        assert found is None
        call()
        found = watch.committed()
    watch.close()
    return found


class Anything(nn.Module):
    """Takes whatever it is called with."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.ones(1)


def test_fingerprints_see_every_tensor_its_shape_and_all_of_a_large_one() -> None:
    model, large = Anything(), torch.zeros(300, 1000)
    other = large.clone()
    other[1::2] = 1.0
    calls = [
        lambda: model(torch.arange(6)),
        lambda: model(torch.arange(6).view(2, 3)),
        lambda: model(ids={"a": [torch.arange(6)], "b": (torch.ones(2, dtype=torch.bfloat16),)}, label="text"),
        lambda: model(large),
        lambda: (model(other), model(torch.ones(3) > 0)),
    ]
    found = reported(model, *calls)
    assert found is not None
    assert len(set(found)) == FIRST_COMMITS
    assert reported(model, *calls) == found


def test_an_evaluation_between_steps_does_not_count() -> None:
    model = Anything()

    def evaluated(number: int) -> None:
        model(torch.full((2,), number))
        with torch.no_grad():
            model(torch.rand(3))
        model.eval()
        model(torch.rand(3))
        model.train()

    first, second = (reported(model, *(lambda n=n: evaluated(n) for n in range(FIRST_COMMITS))) for _ in range(2))
    assert first == second
    assert first


@pytest.mark.parametrize(
    "inputs", [None, "text", torch.eye(3).to_sparse()], ids=["never called", "no tensor", "sparse"]
)
def test_inputs_that_cannot_be_read_end_the_watch(inputs: Any) -> None:
    model = Anything()
    assert reported(model, lambda: None if inputs is None else model(inputs)) == ()


def test_a_scripted_model_which_has_no_hooks_is_not_watched() -> None:
    model = torch.jit.script(nn.Linear(3, 2))
    assert reported(model, lambda: model(torch.ones(1, 3))) == ()


def test_after_the_report_the_model_is_called_without_a_hook() -> None:
    """So later steps cost nothing."""
    model = Anything()
    plain = sorted(vars(model))
    counts = {name: len(value) for name, value in vars(model).items() if isinstance(value, dict)}
    assert reported(model, *(lambda n=n: model(torch.full((2,), n)) for n in range(FIRST_COMMITS)))
    assert sorted(vars(model)) == plain
    assert {name: len(value) for name, value in vars(model).items() if isinstance(value, dict)} == counts


def test_a_watched_model_can_be_copied_pickled_and_compiled(tmp_path: Path) -> None:
    model = make("perceptron")
    watch = BatchWatch(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        backward(other)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    backward(compiled)
    assert watch.committed() == ()
