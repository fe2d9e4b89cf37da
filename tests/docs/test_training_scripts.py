"""docs/training-scripts.md: its code does what it says, against PyTorch's optimizers; so do its claims on tensors."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import Observer, ParameterServer
from torch import Tensor, nn

from tests.docs.blocks import blocks_of
from tests.worker.serving import ServerThread

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training-scripts.md"
ETA = 0.05
criterion = nn.CrossEntropyLoss()


def snippets() -> dict[str, str]:
    """The page's Python blocks by name, which follows the language."""
    python = [block for block in blocks_of(PAGE) if block.language == "python"]
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    return {rows[block.line - 1].split()[1]: block.text for block in python}


def batches(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(20, 6, generator=generator), torch.randint(0, 3, (20,), generator=generator)) for _ in range(count)
    ]


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@contextmanager
def worker(model: nn.Module, **settings: Any) -> Iterator[ParameterServer]:
    with ServerThread(rule="downpour", eta=ETA, **settings) as server, ParameterServer(server.address, model) as ps:
        yield ps


def typed(name: str, model: nn.Module, ps: ParameterServer, **more: Any) -> dict[str, Any]:
    """Run a block as a script that has these names."""
    names = {"torch": torch, "os": os, "model": model, "ps": ps, "criterion": criterion, "loader": batches(), **more}
    exec(snippets()[name], names)
    return names


def plainly(optimizer: Callable[[nn.Module], torch.optim.Optimizer], each: Callable[..., None]) -> nn.Module:
    """A model after the same batches in a script without gemps."""
    model = a_model()
    one = optimizer(model)
    for number, (inputs, labels) in enumerate(batches()):
        each(model, one, number, criterion(model(inputs), labels))
    return model


def sgd(model: nn.Module, **settings: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=ETA, **settings)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, loss: Tensor) -> None:
    (loss / 4).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()


def run_the_optimizer_of_the_page(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    model = a_model()
    monkeypatch.setenv("GEMPS_SERVER", server.address)
    names = {"torch": torch, "ParameterServer": ParameterServer, "model": model, "criterion": criterion}
    exec(snippets()["optimizer"], names | {"loader": batches()})
    return model


def test_an_optimizer_of_the_page_trains_as_alone_under_a_rule_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerThread(rule="downpour") as server:
        model = run_the_optimizer_of_the_page(server, monkeypatch)
        assert server.server.central.clock == 1 + len(batches())
    expected = a_model()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.002, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for number, (inputs, labels) in enumerate(batches()):
        step(expected, optimizer, number, criterion(expected(inputs), labels))
        scheduler.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], atol=1e-5), name


def test_an_optimizer_of_the_page_decides_the_rule_of_a_server_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerThread(rule="auto") as server:
        run_the_optimizer_of_the_page(server, monkeypatch)
        recipe = server.server.choice.recipe
        assert recipe is not None
        assert (recipe.optimizer, recipe.kind, recipe.groups[0]["lr"]) == ("AdamW", "rms", 0.002)


def test_a_rate_that_the_script_computes_by_itself_follows_the_run() -> None:
    model, expected = a_model(), a_model()
    with ServerThread(rule="downpour") as server:
        optimizer = sgd(model)
        with ParameterServer(server.address, model, optimizer=optimizer) as ps:
            typed("schedule", model, ps, optimizer=optimizer)
    alone = sgd(expected)
    for number, (inputs, labels) in enumerate(batches()):
        alone.param_groups[0]["lr"] = 0.1 * 0.999**number
        step(expected, alone, number, criterion(expected(inputs), labels))
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], atol=1e-6), name


@pytest.mark.parametrize(
    ("name", "optimizer", "each"),
    [
        ("clipping", sgd, clipped),
        ("weight-decay", lambda model: sgd(model, weight_decay=1e-4), step),
        ("accumulation", sgd, accumulated),
    ],
)
def test_code_of_the_page_commits_what_the_optimizer_would_apply(name: str, optimizer: Any, each: Any) -> None:
    model = a_model()
    with worker(model) as ps:
        typed(name, model, ps)
    expected = plainly(optimizer, each).state_dict()
    assert not torch.equal(expected["0.weight"], a_model().state_dict()["0.weight"])
    for tensor, value in model.state_dict().items():
        assert torch.allclose(value, expected[tensor], atol=1e-6), tensor


def test_a_constraint_in_forward_trains_as_on_the_page_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    models = [a_model() for _ in range(2)]
    for model in models:
        exec(snippets()["constraint"], {"torch": torch, "model": model})
    with worker(models[0]) as ps:
        for inputs, labels in batches():
            criterion(models[0](inputs), labels).backward()
            ps.step()
    optimizer = sgd(models[1])
    for number, (inputs, labels) in enumerate(batches()):
        step(models[1], optimizer, number, criterion(models[1](inputs), labels))
    assert models[0][0].weight.abs().max().item() == pytest.approx(0.1)
    assert torch.allclose(models[0][0].weight, models[1][0].weight, atol=1e-6)
    assert not caplog.records


def test_the_gradient_type_of_the_page_is_that_of_the_gradients() -> None:
    names = {"torch": torch, "model": a_model()}
    exec(snippets()["gradient-type"], names)
    with worker(names["model"]) as ps:
        inputs, labels = batches(1)[0]
        criterion(names["model"](inputs.bfloat16()).float(), labels).backward()
        assert {(p.dtype, p.grad.dtype) for p in names["model"].parameters()} == {(torch.bfloat16, torch.float32)}
        assert ps.step().applied


def test_evaluation_of_the_page_is_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    inputs, labels = batches(1)[0]
    with ServerThread() as server, ParameterServer(server.address, model) as ps:
        monkeypatch.setenv("GEMPS_SERVER", server.address)
        names = typed("evaluation", model, ps, test_inputs=inputs, test_labels=labels)
        with Observer(server.address) as observer:
            seen = observer.get_status()["last_evaluation"]
    assert (seen["accuracy"], seen["samples"]) == (pytest.approx(names["accuracy"]), 20)
    assert model.training


def test_checkpoint_of_the_server_loads_as_on_the_page(tmp_path: Path) -> None:
    model, loaded = a_model(), a_model()
    with worker(model, data_dir=tmp_path) as ps:
        typed("clipping", model, ps)
    typed("checkpoint", loaded, ps, data_dir=tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_every_block_of_the_page_is_tested() -> None:
    assert set(snippets()) == {
        "optimizer", "schedule", "clipping", "weight-decay", "constraint", "gradient-type", "accumulation", "finished",
        "evaluation", "checkpoint",
    }  # fmt: skip


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_running_statistics_stay_with_their_worker_and_the_newest_ones_are_the_server_s() -> None:
    models = [normalised(), normalised()]
    alone = normalised()  # no BatchNorm of it sees the second worker's data
    late = normalised()
    with ServerThread(eta=1e-30) as server:  # the weights stand still, so only the data decide
        with (
            ParameterServer(server.address, models[0], name="a") as first,
            ParameterServer(server.address, models[1], name="b") as second,
        ):
            for inputs, labels in batches():
                alone(inputs)
                for model, ps, shift in ((models[0], first, 0.0), (models[1], second, 5.0)):
                    criterion(model(inputs + shift), labels).backward()
                    ps.step()
        with ParameterServer(server.address, late, name="c"):
            pass
    assert torch.allclose(models[0][1].running_mean, alone[1].running_mean)
    assert not torch.allclose(models[1][1].running_mean, alone[1].running_mean, atol=0.1)
    assert torch.equal(late[1].running_mean, models[1][1].running_mean)


class Adapted(nn.Module):
    """A frozen layer and a LoRA of rank 4."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(1000, 1000).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, 1000) / 100)
        self.up = nn.Parameter(torch.zeros(1000, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def test_commits_of_a_lora_hold_the_trained_parameters_only() -> None:
    model = Adapted()
    with ServerThread() as server, ParameterServer(server.address, model) as ps:
        model(torch.randn(2, 1000)).square().mean().backward()
        ps.step()
        with Observer(server.address) as observer:
            (seen,) = observer.get_status()["workers"]
    assert (seen["commits"], seen["bytes_received"]) == (1, 32_000)


def test_a_loop_that_asks_whether_the_run_is_finished_evaluates_the_newest_parameters_at_its_end() -> None:
    model, evaluated = a_model(), []

    def evaluate(model: nn.Module) -> None:
        evaluated.append([one.clone() for one in model.parameters()])

    with worker(model, steps=15) as ps:
        typed("finished", model, ps, evaluate=evaluate)
    assert ps.applied_steps == 15
    assert len(evaluated) == 2  # of 12 batches an epoch
    assert all(map(torch.equal, evaluated[-1], model.parameters()))
