"""GempsCallback in a lightning Trainer, against real servers."""

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ServerUnavailableError
from gem_worker.termination import termination
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.worker.loops import worker_status
from tests.worker.serving import ServerThread

lightning = pytest.importorskip("lightning", exc_type=ImportError)

from gemps.integrations.lightning import GempsCallback  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

ROWS = 22


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """A server whose rule adds deltas, so that one worker trains as alone."""
    with ServerThread(rule="downpour") as running:
        yield running


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.fails_at = fails_at
        self.validated: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        if self.global_step == self.fails_at:
            raise FloatingPointError
        return self.layers(batch[0]).sub(batch[1]).square().mean()

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.validated.append(float(self.layers(batch[0]).sub(batch[1]).square().mean()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1, eps=1e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class TwoOptimizers(Module):
    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.layers[at].parameters(), lr=0.1) for at in (0, 2)]


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:
        self.optimizers().zero_grad()
        self.manual_backward(super().training_step(batch, index))
        self.optimizers().step()


def loader(batch: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(ROWS, 6, generator=generator), torch.randn(ROWS, 1, generator=generator))
    return DataLoader(data, batch_size=batch)


def a_trainer(folder: Path, *callbacks: Any, **settings: Any) -> Any:
    usual = {
        "max_steps": 10, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "gradient_clip_val": 0.5,
        "num_sanity_val_steps": 0,
    }  # fmt: skip
    return lightning.Trainer(default_root_dir=folder, callbacks=list(callbacks), **(usual | settings))


def joined(server: ServerThread, **settings: Any) -> GempsCallback:
    return GempsCallback(address=server.address, **({"name": "w"} | settings))


def has_left(server: ServerThread) -> bool:
    return bool(worker_status(server)["state"] == "WORKER_STATE_LEFT")


def assert_alike(model: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, value), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(value, expected, atol=tolerance), name


def assert_central(server: ServerThread, model: nn.Module) -> None:
    central = torch.from_numpy(server.server.central.parameters)
    assert torch.equal(central, torch.cat([one.detach().flatten() for one in model.parameters()]))


@pytest.mark.parametrize(
    ("settings", "create"),
    [
        ({}, Module),
        ({}, Manual),
        pytest.param({}, lambda: torch.compile(Module(), backend="aot_eager"), marks=pytest.mark.long),
        ({"accumulate_grad_batches": 2}, Module),
        ({"precision": "bf16-mixed"}, Module),
    ],
    ids=["plain", "manual", "compiled", "accumulation", "bfloat16"],
)
def test_one_worker_trains_as_the_trainer_alone(
    settings: Any, create: Any, server: ServerThread, tmp_path: Path
) -> None:
    if create is Manual:
        settings = {"gradient_clip_val": None}
    alone, module = create(), create()
    a_trainer(tmp_path, **settings).fit(alone, loader())
    trained = list(module.parameters())
    callback = joined(server, every=4)
    a_trainer(tmp_path, callback, **settings).fit(module, loader())
    assert all(one is now for one, now in zip(trained, module.parameters(), strict=True))
    assert_alike(module, alone)
    assert_central(server, module)
    assert callback.ps is not None
    assert callback.ps.applied_steps == 3  # after steps 4, 8 and, as the last one, 10
    assert has_left(server)


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}])
def test_a_run_that_follows_the_modules_optimizer_commits_each_of_its_steps(settings: Any, tmp_path: Path) -> None:
    """With its clipping, weight decay and schedule, which follows the run."""
    module = Module()
    with ServerThread(rule="auto") as server:
        callback = joined(server)
        a_trainer(tmp_path, callback, max_steps=12, **settings).fit(module, loader())
        assert callback.ps is not None
        assert callback.ps.recipe_text.startswith("AdamW: RMS-scaled gradients at a third of its rate")
        assert (callback.ps.applied_steps, callback.ps.progress) == (12, 12)
        assert worker_status(server)["commits"] == 12
        assert callback.ps.last_report is not None
        assert callback.ps.last_report.loss is not None
        assert callback.ps.last_report.eta == pytest.approx(0.01 * 0.9**11)
        assert_central(server, module)


def test_a_module_that_steps_its_optimizer_itself_is_followed_too(tmp_path: Path) -> None:
    module = Manual()
    with ServerThread(rule="auto") as server:
        callback = joined(server)
        a_trainer(tmp_path, callback, gradient_clip_val=None).fit(module, loader())
        assert callback.ps is not None
        assert callback.ps.applied_steps == 10
        assert_central(server, module)


def test_samples_steps_and_loss_are_counted(server: ServerThread, tmp_path: Path) -> None:
    """22 rows: five batches of 4 and one of 2, in two optimizer steps of 4 and 2 batches for each of two epochs."""
    seen: list[tuple[int, ...]] = []

    class Watch(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            status = worker_status(server)
            seen.append((status["commits"], status["local_steps"], status["samples"]))
            self.loss = float(outputs["loss"])

    callback, watch = joined(server, every=2), Watch()
    a_trainer(tmp_path, callback, watch, max_steps=-1, max_epochs=2, accumulate_grad_batches=4).fit(Module(), loader())
    assert seen == [(0, 0, 0)] * 5 + [(1, 2, ROWS)] * 6 + [(2, 4, 2 * ROWS)]
    assert callback.ps is not None
    report = callback.ps.last_report
    assert report is not None
    assert report.loss == pytest.approx(4 * watch.loss)


def test_batches_of_a_class_of_ones_own_count_no_samples(server: ServerThread, tmp_path: Path) -> None:
    class Pair:
        def __init__(self, rows: list[tuple[Tensor, ...]]) -> None:
            self.inputs, self.targets = (torch.stack(column) for column in zip(*rows, strict=True))

        def __getitem__(self, index: int) -> Tensor:
            return (self.inputs, self.targets)[index]

    batches = DataLoader(loader().dataset, batch_size=4, collate_fn=Pair)
    callback = joined(server)
    a_trainer(tmp_path, callback, max_steps=3).fit(Module(), batches)
    assert callback.ps is not None
    assert callback.ps.applied_steps == 3


def test_the_end_of_the_run_ends_the_training(tmp_path: Path) -> None:
    with ServerThread(rule="downpour", commits=3) as server:
        trainer, module = a_trainer(tmp_path, joined(server, every=2), max_steps=100), Module()
        trainer.fit(module, loader())
        assert trainer.global_step == 6
        assert_central(server, module)
        # A Trainer that must go on takes no steps.
        trainer, late = a_trainer(tmp_path, joined(server), min_steps=6), Module()
        trainer.fit(late, loader())
        assert trainer.global_step == 6
        assert_central(server, late)
        assert server.server.central.clock == 4


def test_a_run_in_epochs_gets_their_length(tmp_path: Path) -> None:
    with ServerThread(rule="downpour", epochs=2) as server:
        trainer = a_trainer(tmp_path, joined(server, every=3), max_steps=100)
        trainer.fit(Module(), loader())
        assert trainer.global_step == 12


def test_validation_and_checkpoints_have_the_parameters_that_came_with_the_last_exchange(
    server: ServerThread, tmp_path: Path
) -> None:
    """A second worker has moved the central variable by then."""

    class Move(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == 1:
                a_trainer(tmp_path, joined(server, name="other"), max_steps=1).fit(Module(), loader())

    module = Module()
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    settings = {"max_steps": 2, "val_check_interval": 2, "enable_checkpointing": True}
    trainer = a_trainer(tmp_path, joined(server, every=2), Move(), keep, **settings)
    trainer.fit(module, loader(), loader(ROWS))
    assert server.server.central.clock == 3
    assert_central(server, module)
    (validated,) = module.validated
    trainer.validate(module, loader(ROWS), verbose=False)
    assert module.validated[1] == pytest.approx(validated)
    assert_alike(Module.load_from_checkpoint(keep.best_model_path), module, 0)


def test_a_trainer_resumes_its_optimizer_and_the_servers_parameters(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
    alone = Module()
    a_trainer(tmp_path).fit(alone, loader())
    place = {"rule": "downpour", "data_dir": tmp_path / "state"}
    with ServerThread(**place, commits=2) as server:
        trainer = a_trainer(tmp_path, joined(server, every=3), keep, enable_checkpointing=True, max_steps=9)
        trainer.fit(Module(), loader())
        assert trainer.global_step == 6
    with ServerThread(**place, resume=True) as server:
        module = Module()
        a_trainer(tmp_path, joined(server, every=3)).fit(module, loader(), ckpt_path=tmp_path / "step=6.ckpt")
        assert_central(server, module)
    assert_alike(module, alone)


def test_a_worker_leaves_when_training_raises(server: ServerThread, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError):
        a_trainer(tmp_path, joined(server)).fit(Module(fails_at=3), loader())
    assert worker_status(server)["commits"] == 3
    assert has_left(server)


@pytest.mark.parametrize("code", [0, 143])
def test_on_sigterm_the_last_steps_are_committed(
    code: int, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code:
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")

    class Terminate(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 5:
                signal.raise_signal(signal.SIGTERM)

    module = Module()
    with pytest.raises(SystemExit) as found:
        a_trainer(tmp_path, joined(server, every=4), Terminate()).fit(module, loader())
    assert found.value.code == code
    assert worker_status(server)["commits"] == 2
    assert has_left(server)
    assert_central(server, module)
    assert not termination.has_begun


def test_errors_of_the_connection_are_those_of_parameter_server(tmp_path: Path) -> None:
    nobody = {"address": "127.0.0.1:1", "client_settings": ClientSettings(connect_timeout=0.5)}
    with pytest.raises(ServerUnavailableError):
        a_trainer(tmp_path, GempsCallback(**nobody)).fit(Module(), loader())


@pytest.fixture
def process_group_ends() -> Iterator[None]:
    """Lightning's DDP leaves a process group and environment variables."""
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.mark.usefixtures("process_group_ends")
def test_several_devices_and_several_optimizers_are_refused(server: ServerThread, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DDPStrategy, and gemps itself divides the work"):
        a_trainer(tmp_path, joined(server), strategy="ddp").fit(Module(), loader())
    with pytest.raises(ValueError, match="2 optimizers, not 1: merge them"):
        a_trainer(tmp_path, joined(server), gradient_clip_val=None).fit(TwoOptimizers(), loader())
    assert server.server.central.clock == 0
