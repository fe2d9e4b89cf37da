"""Buffers against a real server: what has not changed does not travel, need not be finite, and may outgrow the run."""

import logging
import math
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gem_worker import ClientSettings, DivergedError, ParameterServer
from gem_worker.flat_model import FlatModel
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.worker.loops import train, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import a_batch

IMPATIENT = ClientSettings(connect_timeout=20)
INFINITE = torch.triu(torch.full((48, 48), -math.inf), 1)


@pytest.fixture(
    params=[
        "stream",
        pytest.param(
            "shared memory",
            marks=pytest.mark.skipif(not hasattr(socket, "recv_fds"), reason="no descriptors can be passed here"),
        ),
    ]
)
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    place = {"shared_memory_socket": tmp_path / "memory"} if request.param == "shared memory" else {}
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    with ServerThread(data_dir=tmp_path / "state", **place) as running:
        yield running


class Masked(nn.Sequential):
    """64 inputs to 10 classes, with BatchNorm, a table as large as is compared alone, and a mask that is infinite."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
        self.table: Tensor
        self.mask: Tensor
        self.register_buffer("table", torch.arange(16384, dtype=torch.float32))
        self.register_buffer("mask", INFINITE.clone())
        self.register_buffer("empty", torch.empty(0))


PARAMETER_BYTES = 4 * (64 * 8 + 8 + 8 + 8 + 8 * 10 + 10)
# Means and variances of 8 features, and a counter.
BATCH_NORM_BYTES = 4 * 16 + 8


def connect(server: ServerThread, model: nn.Module, **settings: Any) -> ParameterServer:
    return ParameterServer(server.address, model, client_settings=IMPATIENT, **({"name": "w"} | settings))


def central(server: ServerThread, model: nn.Module) -> dict[str, Tensor]:
    """Return the BUFFERs that the server holds, by name."""
    held, found = server.server.central, {}
    for spec, piece in zip(FlatModel(model).layout.buffers, held.buffers.pieces, strict=True):
        like = model.state_dict()[spec.name]
        found[spec.name] = torch.frombuffer(bytearray(piece or b"\0"), dtype=torch.uint8)[: len(piece)].view(like.dtype)
    return found


@pytest.mark.parametrize("settings", [{}, {"delta_wire": "bfloat16", "parameter_wire": "int4"}])
def test_beside_masks_and_tables_only_what_batch_norm_changes_travels(
    server: ServerThread, settings: dict[str, Any]
) -> None:
    model = Masked()
    with connect(server, model, **settings) as ps:
        before = worker_status(server)
        train(ps, 3)
    after = worker_status(server)
    up, down = (int(after[name]) - int(before[name]) for name in ("bytes_received", "bytes_sent"))
    sizes = {"bfloat16": PARAMETER_BYTES // 2, "int4": -(-626 // 2) + 4 * 3}
    assert up == 3 * (sizes.get(settings.get("delta_wire", ""), PARAMETER_BYTES) + BATCH_NORM_BYTES)
    assert down == 3 * sizes.get(settings.get("parameter_wire", ""), PARAMETER_BYTES)
    server.stop()
    for name, value in load_file(server.checkpoint).items():
        if name in dict(model.named_buffers()):
            assert torch.equal(model.state_dict()[name], value), name


def in_place(model: Masked) -> None:
    model.table[3] = 7


def data(model: Masked) -> None:
    model.table.data[16383] += 1


def numpy(model: Masked) -> None:
    model.table.numpy()[0] = -0.0


def replaced(model: Masked) -> None:
    model.table = model.table + 1


def not_contiguous(model: Masked) -> None:
    model.mask = model.mask.T


def loaded(model: Masked) -> None:
    model.load_state_dict({"table": torch.zeros(16384)}, strict=False, assign=True)


@pytest.mark.parametrize("change", [in_place, data, numpy, replaced, loaded], ids=lambda one: one.__name__)
def test_a_change_of_a_script_reaches_the_server_and_another_worker_that_does_not_undo_it(
    server: ServerThread, change: Callable[[Masked], None]
) -> None:
    model, other = Masked(), Masked()
    with connect(server, model, name="one") as one, connect(server, other, name="other") as two:
        train(one, 2)
        train(two, 2)
        change(model)
        train(one, 1)
        expected = model.table.numpy().tobytes()
        train(two, 2)
        assert other.table.numpy().tobytes() == expected
        train(one, 1)
        assert model.table.numpy().tobytes() == expected
        assert central(server, model)["table"].numpy().tobytes() == expected


def test_an_infinite_mask_trains_and_is_in_the_checkpoint_as_it_is(server: ServerThread) -> None:
    model = Masked()
    model.mask[0, 0] = math.nan
    before = model.mask.numpy().tobytes()
    with connect(server, model) as ps:
        train(ps, 3)
        assert ps.applied_steps == 3
    assert model.mask.numpy().tobytes() == before
    server.stop()
    assert load_file(server.checkpoint)["mask"].numpy().tobytes() == before


def test_a_buffer_that_becomes_infinite_skips_the_step_and_is_named(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = Masked()
    with connect(server, model) as ps:
        train(ps, 1)
        model.table[5] = math.inf
        counter = int(model[2].num_batches_tracked)
        train(ps, 1)
        assert (ps.applied_steps, ps.skipped_steps) == (1, 1)
        assert (float(model.table[5]), int(model[2].num_batches_tracked)) == (5, counter)
        train(ps, 1)
        for _ in range(99):
            model.table[5] = math.nan
            train(ps, 1)
        model.table[5] = math.nan
        with pytest.raises(DivergedError, match=r"buffer table infinite or NaN.*persistent=False"):
            train(ps, 1)
    assert "the new values of the buffer table are not finite: this step is skipped" in caplog.text


def grown(model: Masked) -> None:
    model.mask = torch.zeros(64, 64)


def resized(model: Masked) -> None:
    model.table.resize_(20_000).fill_(2)


def shrunk(model: Masked) -> None:
    model.table.resize_(4)


def filled(model: Masked) -> None:
    model.empty.resize_(3).fill_(1)


def retyped(model: Masked) -> None:
    model.table = model.table.double()


def removed(model: Masked) -> None:
    model.table = None  # type: ignore[assignment]


@pytest.mark.parametrize("change", [grown, resized, shrunk, filled, retyped, removed], ids=lambda one: one.__name__)
def test_a_buffer_that_changes_its_form_stays_with_its_worker_and_one_warning_says_so(
    server: ServerThread, caplog: pytest.LogCaptureFixture, change: Callable[[Masked], None]
) -> None:
    model, other = Masked(), Masked()
    with connect(server, model, name="one") as one, connect(server, other, name="other") as two:
        train(one, 2)
        change(model)
        own = {name: value.clone() for name, value in model.named_buffers()}
        other.table.fill_(8)
        train(two, 1)
        train(one, 3)
        for name in ("table", "mask", "empty"):
            now = dict(model.named_buffers()).get(name)
            is_changed = (
                now is None or now.shape != getattr(other, name).shape or now.dtype != getattr(other, name).dtype
            )
            if is_changed and now is not None:
                assert torch.equal(now, own[name]), name
            elif now is not None:
                assert torch.equal(now, getattr(other, name)), name
        assert (one.applied_steps, int(model[2].num_batches_tracked)) == (5, 5)
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "changed shape, type or device" in warnings[0]
    assert "persistent=False" in warnings[0]


@pytest.mark.filterwarnings("ignore")
def test_quantisation_aware_training_goes_on_while_its_observers_are_resized(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    quantization = pytest.importorskip("torch.ao.quantization")

    def prepared() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), quantization.QuantStub(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        quantized: nn.Module = quantization.prepare_qat(model.train())
        return quantized

    model = prepared()
    values = dict(model.named_buffers())
    assert any(not value.numel() for value in values.values())
    assert any(bool(value.isinf().any()) for value in values.values() if value.is_floating_point())
    with connect(server, model) as ps:
        train(ps, 4)
        assert (ps.applied_steps, ps.skipped_steps) == (4, 0)
    values = dict(model.named_buffers())
    assert all(bool(value.isfinite().all()) for value in values.values())
    assert values["2.weight_fake_quant.scale"].shape == (8,)
    assert sum("changed shape" in one.message for one in caplog.records) == 1
    caplog.clear()
    warm = prepared()
    warm(a_batch()[0])
    with ServerThread() as another, connect(another, warm) as ps:
        train(ps, 3)
        assert torch.equal(
            central(another, warm)["1.activation_post_process.activation_post_process.max_val"],
            dict(warm.named_buffers())["1.activation_post_process.activation_post_process.max_val"].view(-1),
        )
    assert "changed shape" not in caplog.text


def test_more_runs_of_changes_than_a_header_takes_send_all_buffers(server: ServerThread) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for number in range(600):
        model.register_buffer(f"b{number:03d}", torch.tensor([float(number)]))
    with connect(server, model) as ps:
        train(ps, 1)
        for number in range(0, 600, 2):
            getattr(model, f"b{number:03d}").add_(1000)
        before = worker_status(server)
        train(ps, 1)
        sent = int(worker_status(server)["bytes_received"]) - int(before["bytes_received"])
        assert sent == 4 * (650 + 600)
        values = central(server, model)
        assert all(values[f"b{number:03d}"].item() == number + 1000 * (number % 2 == 0) for number in range(600))


def test_the_buffers_that_changed_are_those_whose_bytes_differ() -> None:
    """Of all sizes, around those that are compared alone, and of all types, also empty and not contiguous."""
    torch.manual_seed(0)
    shapes = [(), (0,), (1,), (5, 3), (8191,), (8192,), (8193,), (40_000,), (300, 301)]
    types = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool]
    model = nn.Linear(1, 1)
    for number, shape in enumerate(shapes):
        for dtype in types:
            value = torch.randint(0, 2, shape).to(dtype)
            if len(shape) == 2:
                value = value.t().contiguous().t()
            model.register_buffer(f"b{number}_{str(dtype)[6:]}", value)
    flat = FlatModel(model)
    buffers = flat.buffers
    whole = torch.empty(buffers.byte_count, dtype=torch.uint8)
    buffers.read(whole)
    buffers.accept_values(None, whole)
    random = np.random.default_rng(1)
    names = [spec.name for spec in flat.layout.buffers]
    for step in range(12):
        full = [index for index, name in enumerate(names) if getattr(model, name).numel()]
        chosen = sorted(random.choice(full, random.integers(0, len(full)), replace=False).tolist())
        for index in chosen:
            values = getattr(model, names[index]).view(-1) if step % 2 else getattr(model, names[index]).data.view(-1)
            place = [0, -1, random.integers(values.numel())][step % 3]
            values[place] = ~values[place] if values.dtype == torch.bool else values[place] + 1
        buffers.collect()
        buffers.gather()
        changed, selection = buffers.changed()
        assert list(changed) == chosen
        assert selection is not None
        assert list(selection.indices()) == chosen
        packed = torch.empty(sum(flat.layout.buffers[index].byte_count for index in chosen), dtype=torch.uint8)
        buffers.pack(selection, packed)
        expected = b"".join(
            getattr(model, names[index]).view(-1).view(torch.uint8).numpy().tobytes() for index in chosen
        )
        assert packed.numpy().tobytes() == expected
        if step % 4 == 3:
            buffers.restore(chosen)
            buffers.gather()
            assert not buffers.changed()[0]
        else:
            buffers.sent()


@pytest.mark.parametrize("name", ["table", "mask"])
def test_a_large_constant_is_compared_now_and_then_and_each_write_is_found(name: str) -> None:
    """A write that PyTorch counts at once, any other one within 16 steps, wherever it is."""
    model = Masked()
    model.mask = torch.zeros(99, 83)  # not a multiple of a part
    flat = FlatModel(model)
    buffers = flat.buffers
    whole = torch.empty(buffers.byte_count, dtype=torch.uint8)
    buffers.read(whole)
    buffers.accept_values(None, whole)
    values = getattr(model, name)
    index = [spec.name for spec in flat.layout.buffers].index(name)

    def steps_until_found(limit: int) -> int:
        for step in range(1, limit + 1):
            buffers.collect()
            buffers.gather()
            changed, selection = buffers.changed()
            if changed:
                assert list(changed) == [index]
                buffers.pack(selection, torch.empty(values.nbytes, dtype=torch.uint8))
                buffers.sent()
                return step
        return 0

    for place in (0, 1000, -1):
        assert steps_until_found(40) == 0
        values.view(-1)[place] += 1
        assert steps_until_found(1) == 1
        assert steps_until_found(40) == 0
        values.data.view(-1)[place] += 1
        assert 1 <= steps_until_found(16) <= 16
        # It has changed lately, so all of it is compared.
        values.data.view(-1)[place] += 1
        assert steps_until_found(1) == 1
