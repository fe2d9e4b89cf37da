"""Transfer: the payloads that leave the model and enter it, as the core reads and writes them."""

import numpy as np
import pytest
import torch
from gem_worker.errors import UnsupportedModelError
from gem_worker.flat_model import FlatModel
from gem_worker.transfer import Transfer
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from gem_core.chunking import ScaledSplitter
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_core.wire_types import BLOCKS, WireType, decode, encode
from tests.worker.zoo import ZOO, a_batch, make

WIRE_TYPES = [WireType.FLOAT32, WireType.BFLOAT16]
ETA = 0.1


def set_up(kind: str, wire: WireType = WireType.FLOAT32) -> tuple[nn.Module, FlatModel, Transfer]:
    model = make(kind)
    flat = FlatModel(model)
    return model, flat, Transfer(flat, wire, WireType.FLOAT32 if wire in BLOCKS else wire)


def train_one(model: nn.Module, flat: FlatModel) -> torch.Tensor:
    inputs, labels = a_batch()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    flat.collect_gradients()
    return loss


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def expected_delta(model: nn.Module, flat: FlatModel, scale: float = -ETA) -> NDArray[np.float32]:
    gradients = [model.get_parameter(spec.name).grad for spec in flat.layout.parameters]
    return np.concatenate([(g.float() * scale).reshape(-1).numpy() for g in gradients if g is not None])


@pytest.mark.parametrize("wire", [*WIRE_TYPES, *sorted(BLOCKS)])
@pytest.mark.parametrize("kind", ZOO)
def test_a_staged_delta_is_the_scaled_gradient_as_the_core_encodes_it_then_the_buffers(
    kind: str, wire: WireType
) -> None:
    model, flat, transfer = set_up(kind, wire)
    loss = train_one(model, flat)
    delta, gradient = expected_delta(model, flat), expected_delta(model, flat, 1.0)
    staged = transfer.stage(ETA, loss)
    assert staged.usable
    assert staged.loss == loss.item()
    split = PayloadFormat(flat.layout, wire).parameter_bytes
    assert bytes(transfer.delta[:split]) == bytes(encode(wire, delta if staged.scale is None else gradient))
    # Before the first parameters arrived, the server's BUFFERs count as zeros.
    sent = [bytes_of(model.get_buffer(spec.name)) for spec in flat.layout.buffers]
    assert bytes(transfer.delta[split:]) == b"".join(one for one in sent if any(one))


@pytest.mark.parametrize("kind", ZOO)
def test_what_is_scaled_on_its_way_is_the_same_delta(kind: str) -> None:
    model, flat, transfer = set_up(kind, WireType.FLOAT32)
    train_one(model, flat)
    delta = expected_delta(model, flat)
    staged = transfer.stage(ETA, None)
    payload = PayloadFormat(flat.layout, WireType.FLOAT32, transfer.buffers)
    for chunk_bytes in (1000, MAX_CHUNK_BYTES):
        source = ScaledSplitter(payload, chunk_bytes).load(transfer.delta, staged.scale)
        sent = b"".join(bytes(piece) for piece in source)
        assert sent[: payload.parameter_bytes] == delta.tobytes()


def test_a_plain_models_gradients_lie_in_the_delta_where_it_is_scaled_on_its_way() -> None:
    flat = FlatModel(make("perceptron"))
    transfer = Transfer(flat, WireType.FLOAT32, WireType.FLOAT32)
    flat.groups[0].gradients.fill_(3)
    assert np.frombuffer(transfer.delta, np.float32).min() == 3
    assert transfer.stage(ETA, None).scale == -ETA


@pytest.mark.parametrize(
    ("value", "usable"), [(1e20, True), (9e30, True), (1e32, False), (np.nan, False), (-np.inf, False)]
)
def test_a_float32_gradient_that_no_server_takes_is_found_before_it_travels(value: float, usable: bool) -> None:
    flat = FlatModel(make("perceptron"))
    transfer = Transfer(flat, WireType.FLOAT32, WireType.FLOAT32)
    flat.groups[0].gradients.fill_(1)
    flat.groups[0].gradients[3] = value
    assert transfer.stage(0.05, None).usable is usable


@pytest.mark.parametrize("wire", WIRE_TYPES)
@pytest.mark.parametrize("kind", ZOO)
def test_a_reply_becomes_the_models_parameters_and_buffers(kind: str, wire: WireType) -> None:
    model, flat, transfer = set_up(kind, wire)
    values = np.random.default_rng(1).standard_normal(flat.layout.parameter_count).astype(np.float32)
    encoded = bytes(encode(wire, values))
    buffers = bytes(range(1, 1 + flat.layout.buffer_bytes % 200)) * 2
    buffers = (buffers * (1 + flat.layout.buffer_bytes // max(1, len(buffers))))[: flat.layout.buffer_bytes]
    transfer.reply[:] = encoded + buffers
    transfer.arrived()
    transfer.install()
    decoded = np.empty_like(values)
    assert decode(wire, encoded, decoded) is None
    offset = 0
    for spec in flat.layout.parameters:
        parameter = model.get_parameter(spec.name)
        piece = torch.from_numpy(decoded[offset : offset + spec.elements]).view(spec.shape)
        assert torch.equal(parameter, piece.to(parameter.dtype)), spec.name
        offset += spec.elements
    assert b"".join(bytes_of(model.get_buffer(spec.name)) for spec in flat.layout.buffers) == buffers


@pytest.mark.parametrize("kind", ZOO)
def test_first_payload_of_one_model_makes_another_the_same_but_for_frozen_tensors(kind: str) -> None:
    source, _, sender = set_up(kind)
    target = make(kind, seed=9)
    receiver = Transfer(FlatModel(target), WireType.FLOAT32, WireType.FLOAT32)
    frozen = {name: value.clone() for name, value in target.named_parameters() if not value.requires_grad}
    receiver.reply[:] = sender.first_payload()
    receiver.arrived()
    receiver.install()
    for name, value in (source.state_dict() | frozen).items():
        # Whatever type the model holds a trained parameter in, the server holds it in float32.
        expected = value.float().to(value.dtype) if value.is_floating_point() else value
        assert torch.equal(target.state_dict()[name], expected), name


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e31])
@pytest.mark.parametrize("wire", WIRE_TYPES)
def test_a_gradient_with_one_bad_element_is_not_usable(bad: float, wire: WireType) -> None:
    model, flat, transfer = set_up("perceptron", wire)
    train_one(model, flat)
    flat.groups[0].gradients[1234] = bad
    assert not transfer.stage(1.0, None).usable


def test_a_buffer_that_is_not_finite_makes_the_step_unusable_and_is_restored() -> None:
    model, flat, transfer = set_up("batch-norm")
    transfer.reply[:] = transfer.first_payload()
    transfer.arrived()
    transfer.install()
    train_one(model, flat)
    variance = model.get_buffer("1.running_var")
    variance[3] = float("inf")
    staged = transfer.stage(ETA, None)
    assert (staged.usable, staged.bad_buffer) == (False, "1.running_var")
    transfer.restore_buffers()
    assert torch.equal(variance, torch.ones(8))
    assert int(model.get_buffer("1.num_batches_tracked")) == 0


def test_a_loss_of_several_elements_is_refused_with_the_fix() -> None:
    _, _, transfer = set_up("perceptron")
    with pytest.raises(ValueError, match=r"2 elements.*loss\.mean\(\)"):
        transfer.stage(ETA, torch.zeros(2))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (None, None),
        (0.25, 0.25),
        (2, 2.0),
        (torch.tensor([0.5]), 0.5),
        (float("nan"), None),
        (torch.tensor(1e40), None),
    ],
)
def test_a_loss_may_be_a_number_or_a_scalar_tensor_and_is_dropped_when_not_finite(
    loss: torch.Tensor | float | None, expected: float | None
) -> None:
    _, flat, transfer = set_up("perceptron")
    flat.zero_gradients()
    assert transfer.stage(ETA, loss).loss == expected


def test_first_parameters_that_are_not_finite_are_not_uploaded() -> None:
    model, _, transfer = set_up("perceptron")
    with torch.no_grad():
        model.get_parameter("3.bias")[0] = float("nan")
    with pytest.raises(UnsupportedModelError, match=r"^3\.bias: "):
        transfer.first_payload()


@pytest.mark.parametrize("wire", WIRE_TYPES)
def test_no_copy_of_a_plain_models_gradient_or_parameters_exists_beside_the_payloads(wire: WireType) -> None:
    """docs/design.md, section 1, describes the way of a delta without copies."""
    model, flat, transfer = set_up("perceptron", wire)
    train_one(model, flat)
    before = flat.groups[0].gradients.clone()
    transfer.reply[:] = bytes(len(transfer.reply))
    transfer.stage(ETA, None)
    transfer.install()
    assert flat.is_plain
    assert transfer.extra_bytes == 0
    assert torch.equal(flat.groups[0].gradients, before)


def test_float32_gradients_in_another_order_are_gathered_in_the_payload_itself() -> None:
    _, flat, transfer = set_up("channels-last")
    assert not flat.is_plain
    assert transfer.extra_bytes == 0
    _, flat, transfer = set_up("channels-last", WireType.BFLOAT16)
    assert transfer.extra_bytes == 4 * flat.layout.parameter_count
