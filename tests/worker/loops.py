"""What training loops of several tests are made of, and what the server says of their workers."""

from typing import Any

from gem_worker import Observer, ParameterServer
from torch import Tensor, nn
from torch.nn import functional

from tests.worker.serving import ServerThread
from tests.worker.zoo import a_batch


def loss_of(model: nn.Module, seed: int = 0) -> Tensor:
    inputs, labels = a_batch(seed=seed)
    return functional.cross_entropy(model(inputs), labels)


def backward(model: nn.Module, seed: int = 0) -> Tensor:
    """The loss, whose gradient the model has now."""
    loss = loss_of(model, seed)
    loss.backward()
    return loss


def train(ps: ParameterServer, steps: int) -> list[float]:
    """Steps on one batch; their losses."""
    losses = []
    for _ in range(steps):
        loss = backward(ps.model)
        ps.step(loss, samples=16)
        losses.append(loss.item())
    return losses


def worker_status(server: ServerThread, name: str = "w") -> dict[str, Any]:
    with Observer(server.address) as observer:
        (found,) = [one for one in observer.get_status()["workers"] if one["name"] == name]
    return found
