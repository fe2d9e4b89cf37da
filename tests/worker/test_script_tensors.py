"""Frozen tensors that a script changes itself: target networks, EMA teachers, momentum encoders."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer, ServerRefusedError, UnsupportedModelError
from gem_worker.frozen_watch import FrozenWatch
from gem_worker.model_tensors import ScriptTensors, inspect_model
from safetensors.torch import load_file
from torch import Tensor, nn

from gem_core.layout import TensorKind
from tests.shards.group import serving as serving_shards
from tests.worker.serving import ServerThread

PLAIN = ClientSettings(connect_timeout=20)


class Distilled(nn.Module):
    """An encoder and its teacher: a momentum encoder with a batch norm and a channels_last convolution."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = self._make(width)
        self.teacher = self._make(width).requires_grad_(False)

    @staticmethod
    def _make(width: int) -> nn.Sequential:
        layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(4 * width, 2))
        return layers.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return (self.encoder(images) - self.teacher(images)).square().mean()

    @torch.no_grad()
    def follow(self, momentum: float = 0.5) -> None:
        for teacher, encoder in zip(self.teacher.parameters(), self.encoder.parameters(), strict=True):
            teacher.mul_(momentum).add_(encoder, alpha=1 - momentum)


def train(address: str, model: Distilled, steps: int = 1, **settings: Any) -> None:
    with ParameterServer(address, model, client_settings=PLAIN, **settings) as ps:
        for _ in range(steps):
            model(torch.randn(8, 3, 4, 4) + 1).backward()
            ps.step()
            model.follow()
        # Commit what follow() changed last.
        model(torch.randn(8, 3, 4, 4)).backward()
        ps.step()


def again_from(model: Distilled) -> Distilled:
    """The model of a new process that loads this one's checkpoint."""
    again = Distilled(len(model.encoder[0].bias))
    again.load_state_dict(model.state_dict())
    return again


def weights_of(module: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in module.parameters()]


def are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def test_worker_that_returns_with_its_own_checkpoint_keeps_its_frozen_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Distilled()
    with ServerThread(data_dir=tmp_path) as server:
        train(server.address, first, name="w0")
        caplog.clear()
        again = again_from(first)
        kept = weights_of(again.teacher)
        with ParameterServer(server.address, again, name="w0", client_settings=PLAIN) as ps:
            again(torch.randn(8, 3, 4, 4)).backward()
            assert ps.step().applied
        assert are_equal(weights_of(again.teacher), kept)
        (warning,) = [text for text in caplog.messages if "other values than the run began with" in text]
        assert "teacher.0.weight" in warning
        assert "keep_local=['teacher']" in warning
        # Another name has not been in the run.
        with pytest.raises(ServerRefusedError, match=r"'teacher\.0\.weight'.*keep_local="):
            ParameterServer(server.address, again, name="w1", client_settings=PLAIN).join()
    # Also of a server that begins again from its checkpoint.
    with ServerThread(data_dir=tmp_path, resume=True) as server:
        train(server.address, again_from(again), name="w0")
        with pytest.raises(ServerRefusedError, match=r"teacher"):
            ParameterServer(server.address, again, name="w1", client_settings=PLAIN).join()


def test_worker_that_returns_with_another_model_is_refused() -> None:
    with ServerThread() as server:
        train(server.address, Distilled(), name="w0")
        wider = Distilled(5)
        with pytest.raises(ServerRefusedError, match=r"encoder\.0\.weight"):
            ParameterServer(server.address, wider, name="w0", client_settings=PLAIN).join()


def test_worker_of_several_shards_returns_with_its_own_frozen_values() -> None:
    with serving_shards(2, rule="downpour") as group:
        first = Distilled(64)
        train(group.address, first, name="w0")
        again = again_from(first)
        train(group.address, again, 2, name="w0")
        assert group.clocks() == [6, 6]


def test_local_tensors_are_not_compared_sent_or_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread(data_dir=tmp_path) as server:
        first = Distilled()
        train(server.address, first, name="w0", keep_local=["teacher"])
        own = Distilled()
        own.follow(0.1)
        kept = weights_of(own.teacher)
        with ParameterServer(server.address, own, name="w1", keep_local=["teacher"], client_settings=PLAIN):
            pass
        assert are_equal(weights_of(own.teacher), kept)
        assert are_equal(weights_of(own.encoder), weights_of(first.encoder))
        server.stop()
        assert set(load_file(server.checkpoint)) == {n for n in first.state_dict() if n.startswith("encoder.")}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_local_modules_and_parameters_may_be_replaced() -> None:
    with ServerThread() as server:
        model = Distilled()
        model.temperature = nn.Parameter(torch.ones(()), requires_grad=False)
        local = ["teacher", "temperature"]
        with ParameterServer(server.address, model, keep_local=local, client_settings=PLAIN) as ps:
            for change in (
                lambda: setattr(model, "teacher", copy.deepcopy(model.encoder).requires_grad_(False)),
                lambda: model.teacher.load_state_dict(model.encoder.state_dict(), assign=True),
                lambda: setattr(model, "temperature", nn.Parameter(torch.zeros(()))),
                lambda: delattr(model, "temperature"),
            ):
                model(torch.randn(8, 3, 4, 4)).backward()
                assert ps.step().applied
                change()
            model(torch.randn(8, 3, 4, 4)).backward()
            assert ps.step().applied
            model.encoder = copy.deepcopy(model.encoder)
            with pytest.raises(UnsupportedModelError, match="its submodules changed after joining"):
                ps.step()


def test_frozen_tensors_that_are_sent_reach_other_workers_and_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerThread(data_dir=tmp_path) as server:
        first = Distilled()
        initial = weights_of(first.teacher)
        train(server.address, first, 3, name="w0", send_frozen=["teacher"])
        late = Distilled()
        with ParameterServer(server.address, late, name="late", send_frozen=["teacher"], client_settings=PLAIN):
            pass
        assert not are_equal(initial, weights_of(late.teacher))
        assert are_equal(weights_of(first.teacher), weights_of(late.teacher))
        # It stays frozen, and loads as it was.
        assert not any(one.requires_grad for one in late.teacher.parameters())
        server.stop()
        stored = Distilled()
        stored.load_state_dict(load_file(server.checkpoint))
        assert are_equal(weights_of(stored.teacher), weights_of(first.teacher))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_patterns_name_tensors_modules_or_wildcards() -> None:
    def kinds(**patterns: tuple[str, ...]) -> dict[str, TensorKind]:
        _, tensors = inspect_model(Distilled(), ScriptTensors(**patterns))
        return {one.spec.name: one.spec.kind for one in tensors if one.spec.name.startswith("teacher.")}

    frozen = TensorKind.FROZEN
    assert kinds()["teacher.0.weight"] is frozen
    assert kinds(keep_local=("teacher",)) == {}
    assert set(kinds(keep_local=("teacher.0", "teacher.1.*"))) == {"teacher.3.weight", "teacher.3.bias"}
    sent = kinds(send_frozen=("teacher.*.bias", "teacher.0.weight"), keep_local=("teacher.1",))
    assert {name for name, kind in sent.items() if kind is TensorKind.BUFFER} == {
        "teacher.0.weight",
        "teacher.0.bias",
        "teacher.3.bias",
    }
    assert sent["teacher.3.weight"] is frozen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep_local": ["teachers"]}, "keep_local: no tensor of the model is called 'teachers'"),
        ({"send_frozen": ["teacher.9"]}, "send_frozen: no tensor of the model is called 'teacher.9'"),
        ({"keep_local": ["encoder.0"]}, r"encoder\.0\.weight: keep_local is for tensors that do not train"),
        ({"send_frozen": ["*.weight"]}, r"encoder\.0\.weight: send_frozen is for tensors that do not train"),
    ],
)
def test_wrong_pattern_is_refused_before_joining(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        ParameterServer("127.0.0.1:1", Distilled(), **arguments)


def test_one_name_in_place_of_a_list_is_refused() -> None:
    names: Any = "teacher"
    with pytest.raises(TypeError, match="keep_local is a list of names"):
        ParameterServer("127.0.0.1:1", Distilled(), keep_local=names)


def _write_data(model: Distilled) -> None:
    for one in model.teacher.parameters():
        one.data.mul_(0.5)


def _assign_data(model: Distilled) -> None:
    model.teacher[3].weight.data = model.teacher[3].weight.data * 0.5


CHANGES: dict[str, Callable[[Distilled], object]] = {
    "load_state_dict": lambda model: model.teacher.load_state_dict(model.encoder.state_dict()),
    "in-place operations": lambda model: model.follow(),
    "data is written": _write_data,
    "data is assigned": _assign_data,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_script_that_changes_frozen_tensors_is_warned_once(
    change: Callable[[Distilled], object], caplog: pytest.LogCaptureFixture
) -> None:
    model = Distilled()
    watch = FrozenWatch(inspect_model(model)[1])
    for _ in range(100):
        model(torch.randn(8, 3, 4, 4)).backward()
        watch.count_step()
    assert not caplog.messages
    with torch.no_grad():
        for encoder in model.encoder.parameters():
            encoder.mul_(1.5)
        change(model)
    for _ in range(200):
        watch.count_step()
    watch.compare()
    (warning,) = caplog.messages
    assert "the script changed frozen tensors after joining: teacher." in warning
    assert "send_frozen=['teacher']" in warning


def test_frozen_tensors_made_for_inference_and_empty_ones_are_watched(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        model.table = nn.Parameter(torch.full((3,), torch.nan), requires_grad=False)
        model.none = nn.Parameter(torch.zeros(0, 3), requires_grad=False)
    watch = FrozenWatch(inspect_model(model)[1])
    for _ in range(64):
        watch.count_step()
    assert not caplog.messages
