"""What INT4_BLOCK and SPARSE_BLOCK leave out goes with later deltas."""

from typing import Any

import numpy as np
import pytest
import torch
from gem_worker import ParameterServer
from gem_worker.flat_model import FlatModel
from gem_worker.transfer import Transfer
from torch import nn
from torch.optim import SGD

from gem_core.payload import PayloadFormat
from gem_core.wire_types import BLOCKS, WireType, decode
from tests.worker.serving import ServerThread

COUNT = 700


class Sender:
    """A model of COUNT parameters whose deltas are staged and decoded as a server does."""

    def __init__(self, wire_type: WireType) -> None:
        self._wire_type = wire_type
        self._flat = FlatModel(nn.Linear(COUNT, 1, bias=False))
        self._transfer = Transfer(self._flat, wire_type, WireType.FLOAT32)

    def send(self, gradient: torch.Tensor) -> tuple[bool, bytes]:
        self._flat.groups[0].gradients.copy_(gradient)
        return self._transfer.stage(0.5, None).usable, bytes(self._transfer.delta)

    def change(self, wire_type: WireType) -> None:
        self._wire_type = wire_type
        self._transfer.change_wire_types(wire_type, WireType.FLOAT32)

    def arrived(self, payload: bytes) -> torch.Tensor:
        out = np.empty(COUNT, np.float32)
        assert decode(self._wire_type, memoryview(payload), out) is None
        return torch.from_numpy(out)


@pytest.mark.parametrize(("wire_type", "missing"), [(WireType.INT4_BLOCK, 0.002), (WireType.SPARSE_BLOCK, 0.02)])
def test_deltas_add_up_to_the_gradients(wire_type: WireType, missing: float) -> None:
    """But for what the last ones have left out, which is less than a delta in 4 bits, and several sparse ones."""
    sender, random = Sender(wire_type), torch.Generator().manual_seed(1)
    mean = torch.randn(COUNT, generator=random)
    due, came = torch.zeros(COUNT), torch.zeros(COUNT)
    for _ in range(400):
        gradient = mean + torch.randn(COUNT, generator=random)
        usable, payload = sender.send(gradient)
        assert usable
        due -= 0.5 * gradient
        came += sender.arrived(payload)
    assert torch.linalg.vector_norm(came - due) < missing * torch.linalg.vector_norm(due)


@pytest.mark.parametrize("wire_type", sorted(BLOCKS))
def test_what_was_left_out_goes_with_the_first_delta_of_another_wire_type(wire_type: WireType) -> None:
    """Unless that is skipped: then with the one after it."""
    sender, random = Sender(wire_type), torch.Generator().manual_seed(4)
    gradients = [torch.randn(COUNT, generator=random) for _ in range(4)]
    came = torch.zeros(COUNT)
    for gradient in gradients[:3]:
        came += sender.arrived(sender.send(gradient)[1])
    sender.change(WireType.BFLOAT16)
    assert not sender.send(gradients[3] * np.nan)[0]
    for gradient in (gradients[3], torch.zeros(COUNT)):
        came += sender.arrived(sender.send(gradient)[1])
    torch.testing.assert_close(came, -0.5 * sum(gradients), atol=0.01, rtol=0)


@pytest.mark.parametrize("wire_type", sorted(BLOCKS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e30])
def test_a_skipped_gradient_changes_nothing(wire_type: WireType, bad: float) -> None:
    random = torch.Generator().manual_seed(2)
    first, second = (torch.randn(COUNT, generator=random) for _ in range(2))
    spoiled = second.clone()
    spoiled[13] = bad
    sender, other = Sender(wire_type), Sender(wire_type)
    assert sender.send(first) == other.send(first)
    assert not other.send(spoiled)[0]
    sent, resent = (sender.arrived(one.send(second)[1]) for one in (sender, other))
    # What was taken back is rounded: an element may fall to the next step.
    assert torch.allclose(sent, resent, rtol=1e-5, atol=float(sent.abs().max()) / 6)
    assert torch.count_nonzero((sent - resent).abs() > 1e-5 * sent.abs().max()) < 5


@pytest.mark.parametrize("wire_type", sorted(BLOCKS))
def test_a_step_skipped_for_its_buffers_changes_nothing(wire_type: WireType) -> None:
    payloads = []
    for buffers in ([1.0, 1.0], [1.0, np.inf, 1.0]):
        model = nn.Sequential(nn.Linear(30, 30, bias=False), nn.BatchNorm1d(30))
        flat = FlatModel(model)
        transfer = Transfer(flat, wire_type, WireType.FLOAT32)
        random = torch.Generator().manual_seed(3)
        for value in buffers:
            model[1].running_var[0] = value
            if np.isfinite(value):
                gradient = torch.randn(len(flat.groups[0].gradients), generator=random)
            flat.groups[0].gradients.copy_(gradient)
            assert transfer.stage(0.5, None).usable is bool(np.isfinite(value))
        payloads.append(bytes(transfer.delta))
    sent = [np.empty(flat.layout.parameter_count, np.float32) for _ in payloads]
    for payload, out in zip(payloads, sent, strict=True):
        split = PayloadFormat(flat.layout, wire_type).parameter_bytes
        assert decode(wire_type, memoryview(payload)[:split], out) is None
    assert np.allclose(*sent, rtol=1e-5, atol=float(np.abs(sent[0]).max()) / 6)
    assert np.count_nonzero(np.abs(sent[0] - sent[1]) > 1e-6) < 5


@pytest.mark.parametrize("wire", ["int4", "sparse"])
def test_a_small_movement_of_the_own_optimizer_arrives(wire: Any) -> None:
    model = nn.Linear(64, 1, bias=False)
    gradient = 1 + torch.arange(64) / 100
    with torch.no_grad():
        model.weight.zero_()
    with ServerThread(rule="downpour") as server:
        optimizer = SGD(model.parameters(), lr=1.0)
        with ParameterServer(server.address, model, optimizer=optimizer, delta_wire=wire) as ps:
            for _ in range(320):
                model.weight.grad = gradient[None].clone()
                ps.step()
        central = torch.from_numpy(server.server.central.parameters)
    assert (central + 320 * gradient).abs().max() <= 40 * gradient.max()
