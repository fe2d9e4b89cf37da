"""The worker on a CUDA device; skipped where none is at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gem_worker import ClientSettings, ParameterServer, TaskError, UnsupportedModelError, device_for
from gem_worker.flat_model import FlatModel
from gem_worker.model_tensors import inspect_model
from gem_worker.optimizer_recipe import choose_recipe
from gem_worker.step_clock import CudaClock
from gem_worker.transfer import Transfer
from gem_worker.translated_optimizer import TranslatedOptimizer
from torch.nn import functional

from gem_core.wire_types import BLOCKS, WireType, encode
from tests.worker.serving import ServerThread, processes_in
from tests.worker.zoo import ZOO, a_batch, make

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device at hand")

WIRE_TYPES = [WireType.FLOAT32, WireType.BFLOAT16]


def train(ps: ParameterServer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        inputs, labels = (one.cuda() for one in a_batch())
        loss = functional.cross_entropy(ps.model(inputs), labels)
        loss.backward()
        report = ps.step(loss, samples=len(labels))
        assert report.loss is not None
        losses.append(report.loss)
    return losses


@pytest.mark.parametrize("kind", ZOO)
def test_every_kind_of_model_trains_on_cuda_and_stays_there(kind: str) -> None:
    model = make(kind).cuda()
    with ServerThread() as server, ParameterServer(server.address, model) as ps:
        losses = train(ps, 40)
    assert losses[-1] < 0.95 * losses[0]
    assert all(value.is_cuda for value in model.state_dict().values())


@pytest.mark.parametrize("wire", [*WIRE_TYPES, *sorted(BLOCKS)])
@pytest.mark.parametrize("kind", ["perceptron", "mixed-types", "channels-last", "batch-norm"])
def test_a_delta_staged_on_cuda_is_bit_for_bit_the_cores(kind: str, wire: WireType) -> None:
    model = make(kind).cuda()
    flat = FlatModel(model)
    transfer = Transfer(flat, wire, WireType.FLOAT32)
    inputs, labels = (one.cuda() for one in a_batch())
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    flat.collect_gradients()
    gradients = [model.get_parameter(spec.name).grad for spec in flat.layout.parameters]
    delta = torch.cat([(g.float() * -0.1).reshape(-1).cpu() for g in gradients if g is not None]).numpy()
    staged = transfer.stage(0.1, loss)
    assert staged.usable
    assert staged.loss == loss.item()
    expected = bytes(encode(wire, delta))
    assert bytes(transfer.delta[: len(expected)]) == expected


@pytest.mark.parametrize("wire", WIRE_TYPES)
def test_parameters_installed_on_cuda_are_those_installed_on_the_cpu(wire: WireType) -> None:
    on_host, on_device = make("batch-norm"), make("batch-norm").cuda()
    payload = None
    for model in (on_host, on_device):
        flat = FlatModel(model)
        transfer = Transfer(flat, wire, wire)
        if payload is None:
            values = np.random.default_rng(0).standard_normal(flat.layout.parameter_count)
            payload = bytes(encode(wire, values.astype(np.float32))) + bytes(flat.layout.buffer_bytes)
        transfer.reply[:] = payload
        transfer.arrived()
        transfer.install()
    for name, value in on_host.state_dict().items():
        assert torch.equal(on_device.state_dict()[name].cpu(), value), name


def test_host_memory_is_pinned_and_a_plain_model_needs_no_further_device_memory() -> None:
    flat = FlatModel(make("perceptron").cuda())
    transfer = Transfer(flat, WireType.FLOAT32, WireType.FLOAT32)
    assert torch.frombuffer(transfer.delta, dtype=torch.uint8).is_pinned()
    assert torch.frombuffer(transfer.reply, dtype=torch.uint8).is_pinned()
    assert transfer.extra_bytes == 0
    assert isinstance(transfer.clock, CudaClock)


def test_a_step_says_how_long_it_computed_copied_and_exchanged() -> None:
    model = make("perceptron").cuda()
    with ServerThread() as server, ParameterServer(server.address, model) as ps:
        train(ps, 3)
        report = ps.last_report
    assert report is not None
    assert min(report.compute_seconds, report.copy_seconds, report.exchange_seconds) > 0


def test_a_gradient_that_is_not_finite_is_skipped_on_cuda() -> None:
    model = make("batch-norm").cuda()
    with ServerThread() as server, ParameterServer(server.address, model) as ps:
        train(ps, 1)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        inputs, labels = (one.cuda() for one in a_batch())
        functional.cross_entropy(model(inputs * float("inf")), labels).backward()
        assert ps.step().skipped
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        train(ps, 2)


@pytest.mark.parametrize("kind", ["adamw", "fused", "muon", "sgd"])
def test_a_translated_step_on_cuda_is_that_of_the_cpu_and_waits_for_nothing(kind: str) -> None:
    create: Any = {
        "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
        "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=True),
        "muon": lambda model: torch.optim.Muon([one for one in model.parameters() if one.ndim == 2], lr=0.01),
        "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1),
    }[kind]
    found = []
    for device in ("cpu", "cuda"):
        model = make("perceptron").to(device)
        optimizer = create(model)
        inspected = inspect_model(model)
        recipe = choose_recipe(optimizer, model, inspected[1], every=1).recipe
        flat = FlatModel(model, inspected)
        translated = TranslatedOptimizer(optimizer, recipe, flat, lambda: True)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            for one in flat.trained:
                one.gradient.copy_(torch.randn(one.tensor.shape, generator=generator))
            torch.cuda.set_sync_debug_mode("error")
            try:
                translated.run(None)
                translated.take()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            deltas = [one.gradient.float().cpu() * translated.made.scale for one in flat.trained]
            translated.sent(is_finite=True)
        found.append(deltas)
        translated.close()
        optimizer.step()
    for on_cpu, on_cuda in zip(*found, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=0.05 if kind == "muon" else 1e-4, atol=1e-4)


def test_float16_autocast_with_a_scaler_trains_on_cuda() -> None:
    model = make("perceptron").cuda()
    scaler = torch.amp.GradScaler("cuda")
    losses = []
    with ServerThread() as server, ParameterServer(server.address, model) as ps:
        for _ in range(60):
            inputs, labels = (one.cuda() for one in a_batch())
            with torch.autocast("cuda", torch.float16):
                loss = functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            ps.step(loss, scaler=scaler)
            losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]


def test_a_model_that_is_moved_after_joining_is_refused() -> None:
    model = make("perceptron").cuda()
    flat = FlatModel(model)
    model.cpu()
    with pytest.raises(UnsupportedModelError, match=r"1\.weight: was float32\[32, 64\] on cuda:0.* on cpu now"):
        flat.collect_gradients()


def test_a_model_on_two_devices_is_refused() -> None:
    model = make("perceptron")
    model[3].cuda()
    with pytest.raises(
        UnsupportedModelError, match=r'3\.weight: is on cuda:0 but 1\.weight on cpu.*model\.to\("cpu"\)'
    ):
        FlatModel(model)


def test_workers_of_a_host_share_its_devices_evenly() -> None:
    count = torch.cuda.device_count()
    assert [device_for(rank).index for rank in range(2 * count)] == [*range(count), *range(count)]
    assert device_for(5, "cpu").type == "cpu"
    with pytest.raises(TaskError, match="numbered from 0"):
        device_for(0, f"cuda:{count}")


def test_gemps_work_trains_resnet18_on_cuda(tmp_path: Path) -> None:
    with processes_in(tmp_path) as processes:
        server, address = processes.serve("--steps=5", "--min-workers=2")
        arguments: list[Any] = ["--task=generated-images", "--model=resnet18", "--device=cuda", "--batch-size=8"]
        children = [
            processes.gemps(name, "work", f"--worker-name={name}", *arguments, GEMPS_SERVER=address)
            for name in ("a", "b")
        ]
        for child in children:
            assert child.wait() == 0, child.output
            assert "device=cuda:" in child.output
        assert server.wait() == 0, server.output


def test_cuda_and_cpu_workers_train_one_model_together() -> None:
    patient = ClientSettings(connect_timeout=60)
    first, second = make("batch-norm").cuda(), make("batch-norm", seed=3)
    with ServerThread() as server, ParameterServer(server.address, first, name="cuda", client_settings=patient) as ps:
        train(ps, 3)
        with ParameterServer(server.address, second, name="cpu", client_settings=patient):
            for name, value in second.state_dict().items():
                assert torch.equal(first.state_dict()[name].cpu(), value), name
