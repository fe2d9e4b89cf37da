"""ParameterServer in a loop with Accelerate, against real servers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gem_worker import ParameterServer, UnsupportedOptimizerError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.worker.serving import ServerThread

accelerate = pytest.importorskip("accelerate", exc_type=ImportError)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread(rule="downpour") as running:
        yield running


def prepared() -> tuple[Any, nn.Module, Any, Any]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(24, 6, generator=generator), torch.randn(24, 1, generator=generator))
    model = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-3)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    return accelerator, *accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))


def train(accelerator: Any, model: nn.Module, optimizer: Any, loader: Any) -> Iterator[Tensor]:
    """Yield the loss after each optimizer step."""
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = (model(inputs) - labels).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            yield loss


def test_a_loop_that_exchanges_after_each_step_trains_as_alone(server: ServerThread) -> None:
    alone = prepared()
    assert len(list(train(*alone))) == 3
    accelerator, model, optimizer, loader = prepared()
    with ParameterServer(server.address, model, optimizer=optimizer.optimizer) as ps:
        for loss in train(accelerator, model, optimizer, loader):
            assert ps.exchange(loss, samples=8).applied
    assert ps.applied_steps == 3
    for value, expected in zip(model.parameters(), alone[1].parameters(), strict=True):
        assert torch.allclose(value, expected, atol=1e-6)


def test_the_wrapper_is_refused_with_the_fix() -> None:
    _, model, optimizer, _ = prepared()
    with pytest.raises(UnsupportedOptimizerError, match=r"AcceleratedOptimizer wraps an optimizer: pass .*\.optimizer"):
        ParameterServer("127.0.0.1:1", model, optimizer=optimizer)
