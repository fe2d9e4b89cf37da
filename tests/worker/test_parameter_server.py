"""ParameterServer against a real server: the README's five lines, and what may happen within them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import (
    ClientSettings,
    DivergedError,
    Membership,
    Observer,
    ParameterServer,
    RunFinishedError,
    ServerRefusedError,
    ServerUnavailableError,
    UnsupportedModelError,
)
from gem_worker.client import RunState
from gem_worker.settings import WireName
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from tests.worker.loops import backward, loss_of, train, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import ZOO, a_batch, make

IMPATIENT = ClientSettings(connect_timeout=20)


@pytest.fixture(params=["stream", "shared memory"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    place = {"shared_memory_socket": tmp_path / "memory"} if request.param == "shared memory" else {}
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)  # also for these small models
    with ServerThread(data_dir=tmp_path / "state", **place) as running:
        yield running


def connect(server: ServerThread, model: nn.Module, **settings: Any) -> ParameterServer:
    return ParameterServer(server.address, model, client_settings=IMPATIENT, **({"name": "w"} | settings))


@pytest.mark.parametrize("kind", ZOO)
def test_every_kind_of_model_trains_and_its_checkpoint_loads_strictly(kind: str, server: ServerThread) -> None:
    model = make(kind)
    with connect(server, model) as ps:
        losses = train(ps, 40)
    assert losses[-1] < 0.95 * losses[0]
    server.stop()
    loaded = make(kind, seed=5)
    checkpoint = load_file(server.checkpoint)
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    loaded.load_state_dict(checkpoint | frozen)
    assert set(checkpoint) == set(model.state_dict()) - set(frozen)
    for name, value in model.state_dict().items():
        # The only worker holds what the server holds.
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.parametrize("kind", ["perceptron", "batch-norm", "tied-weights", "channels-last", "float64"])
def test_one_downpour_worker_is_plain_sgd(kind: str, tmp_path: Path) -> None:
    reference, model = make(kind), make(kind)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    with ServerThread(rule="downpour", eta=0.05) as server, connect(server, model) as ps:
        train(ps, 10)
    for _ in range(10):
        optimizer.zero_grad()
        loss_of(reference).backward()
        optimizer.step()
    for name, value in reference.state_dict().items():
        assert torch.allclose(model.state_dict()[name].double(), value.double(), atol=1e-6), name


def test_a_second_worker_installs_the_first_ones_parameters_and_buffers(server: ServerThread) -> None:
    first, second = (nn.Sequential(make("frozen-layer", seed), nn.BatchNorm1d(10)) for seed in (1, 2))
    frozen = second[0][1].weight
    second[0][1].load_state_dict(first[0][1].state_dict())
    with connect(server, first, name="first") as ps:
        train(ps, 3)
        with connect(server, second, name="second") as other:
            assert (ps.rank, other.rank) == (0, 1)
            assert other.version == ps.version
            assert second[0][1].weight is frozen
            for name, value in first.state_dict().items():
                assert torch.equal(second.state_dict()[name], value), name


def test_the_end_of_the_run_is_absorbed_and_every_step_of_the_budget_counts(tmp_path: Path) -> None:
    model = make("perceptron")
    with ServerThread(steps=7, data_dir=tmp_path) as server:
        with connect(server, model) as ps:
            train(ps, 1000)
        assert ps.applied_steps == 7
        assert ps.run_state is RunState.FINISHED
        assert ps.last_report is not None
        assert ps.last_report.applied
        server.stop()
        for name, value in load_file(server.checkpoint).items():
            assert torch.equal(model.state_dict()[name], value)


def test_a_worker_that_comes_back_to_a_finished_run_gets_the_parameters_and_ends_at_its_first_step() -> None:
    model, late = make("perceptron", 1), make("perceptron", 2)
    with ServerThread(commits=3) as server:
        with connect(server, model) as ps:
            train(ps, 10)
        with connect(server, late) as ps:
            assert all(torch.equal(late.state_dict()[name], value) for name, value in model.state_dict().items())
            with pytest.raises(RunFinishedError):
                train(ps, 1)
        assert ps.applied_steps == 0


def test_a_gradient_that_is_not_finite_skips_the_step_and_the_next_one_works(server: ServerThread) -> None:
    model = make("batch-norm")
    with connect(server, model) as ps:
        train(ps, 2)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        inputs, labels = a_batch()
        functional.cross_entropy(model(inputs * float("nan")), labels).backward()
        report = ps.step()
        assert report.skipped
        assert not report.applied
        assert ps.skipped_steps == 1
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
        assert train(ps, 3)[0] < 10
        assert ps.applied_steps == 5
    assert worker_status(server)["commits"] == 5


@pytest.mark.parametrize("where", [0, 1024 * 1024])
def test_of_a_gradient_of_several_chunks_one_bad_element_skips_the_step(where: int, server: ServerThread) -> None:
    """The server finds it while it receives; what it then says ends the stream, and not the run."""
    model = nn.Linear(1024, 1024)
    with connect(server, model) as ps:
        for bad in (False, True, False):
            model(torch.ones(1, 1024)).sum().backward()
            if bad:
                before = model.weight.detach().clone()
                gradient = model.weight.grad if where < model.weight.numel() else model.bias.grad
                assert gradient is not None
                gradient.view(-1)[0] = float("nan")
            report = ps.step()
            assert (report.skipped, report.applied) == (bad, not bad)
            if bad:
                assert torch.equal(model.weight, before)
    assert worker_status(server)["commits"] == 2


def test_a_hundred_gradients_in_a_row_that_are_not_finite_are_divergence(server: ServerThread) -> None:
    model = make("perceptron")
    ps = connect(server, model)

    def overflow_after_five() -> None:
        with ps:
            train(ps, 5)
            while True:
                (loss_of(model) * float("inf")).backward()
                ps.step()

    with pytest.raises(DivergedError, match="smaller --eta"):
        overflow_after_five()
    assert (ps.applied_steps, ps.skipped_steps) == (5, 100)
    assert worker_status(server)["state"] == "WORKER_STATE_LEFT"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_exception_in_the_block_leaves_the_run_and_goes_on(error: type[BaseException], server: ServerThread) -> None:
    def stop_after_one() -> None:
        with connect(server, make("perceptron")) as ps:
            train(ps, 1)
            raise error

    with pytest.raises(error):
        stop_after_one()
    assert worker_status(server)["state"] == "WORKER_STATE_LEFT"


def test_a_worker_with_another_model_is_refused_with_the_tensors_name(server: ServerThread) -> None:
    with connect(server, make("perceptron")):
        other = nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10))
        with pytest.raises(ServerRefusedError, match=r"1\.weight") as caught, connect(server, other, name="other"):
            pass
    assert caught.value.reason == "LAYOUT_MISMATCH"


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_training_works_over_every_wire_type(wire: Any, server: ServerThread) -> None:
    model = make("batch-norm")
    with connect(server, model, delta_wire=wire, parameter_wire=wire) as ps:
        losses = train(ps, 40)
    assert losses[-1] < 0.9 * losses[0]


def test_autocast_to_bfloat16_trains(server: ServerThread) -> None:
    model = make("perceptron")
    losses = []
    with connect(server, model) as ps:
        for _ in range(40):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model)
            loss.backward()
            losses.append(loss.item())
            ps.step(loss)
    assert losses[-1] < 0.95 * losses[0]
    assert model[1].weight.dtype is torch.float32


def test_training_with_a_scaler_works_and_reports_the_unscaled_loss(server: ServerThread) -> None:
    model = make("perceptron")
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    with connect(server, model) as ps:
        for _ in range(40):
            loss = loss_of(model)
            scaler.scale(loss).backward()
            report = ps.step(loss, scaler=scaler)
            losses.append(loss.item())
            assert report.loss == losses[-1]
    assert (ps.applied_steps, ps.skipped_steps) == (40, 0)
    assert losses[-1] < 0.95 * losses[0]


def test_scaled_gradients_are_committed_unscaled() -> None:
    plain, scaled = make("perceptron"), make("perceptron")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ServerThread() as server, connect(server, plain) as ps:
        train(ps, 5)
    with ServerThread() as server, connect(server, scaled) as ps:
        for _ in range(5):
            scaler.scale(loss_of(scaled)).backward()
            ps.step(scaler=scaler)
    for name, value in plain.state_dict().items():
        assert torch.equal(scaled.state_dict()[name], value), name  # 1024 is a power of 2: nothing is rounded


def test_an_overflowed_scaled_gradient_is_skipped_and_halves_the_scale(server: ServerThread) -> None:
    model = make("perceptron")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with connect(server, model) as ps:
        (scaler.scale(loss_of(model)) * float("inf")).backward()
        assert ps.step(scaler=scaler).skipped
    assert scaler.get_scale() == 2.0


def test_gradients_can_be_clipped_between_unscaling_and_the_step() -> None:
    model = make("perceptron")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ServerThread(rule="downpour", eta=1.0) as server, connect(server, model) as ps:
        before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        scaler.scale(loss_of(model)).backward()
        ps.unscale_(scaler)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        ps.step(scaler=scaler)
        moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_a_model_whose_memory_goes_to_other_processes_trains_as_another() -> None:
    models = make("perceptron"), make("perceptron")
    for model in models:
        with ServerThread(rule="downpour", eta=0.1) as server, connect(server, model) as ps:
            train(ps, 1)
            if model is models[1]:
                model.share_memory()
            train(ps, 3)
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], value), name


def test_an_overflow_that_value_clipping_hides_is_skipped(server: ServerThread) -> None:
    model = make("perceptron")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with connect(server, model) as ps:
        scaler.scale(loss_of(model)).backward()
        next(model.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
        ps.unscale_(scaler)
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        assert ps.step(scaler=scaler).skipped
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("delta_wire", ["float32", "bfloat16"])
def test_a_default_device_of_tensors_does_not_matter(server: ServerThread, delta_wire: WireName) -> None:
    model = make("perceptron")
    with torch.device("meta"), connect(server, model, delta_wire=delta_wire) as ps:
        for parameter in model.parameters():
            parameter.grad.fill_(0.1)  # type: ignore[union-attr]
        assert ps.step().applied


def test_something_else_than_a_scaler_is_refused(server: ServerThread) -> None:
    with connect(server, make("perceptron")) as ps:
        loss_of(ps.model).backward()
        with pytest.raises(TypeError, match="GradScaler"):
            ps.step(scaler=2.0)


def test_a_server_that_was_started_anew_and_empty_gets_the_workers_parameters(tmp_path: Path) -> None:
    model = make("batch-norm")
    with ServerThread() as server:
        ps = connect(server, model)
        ps.join()
        train(ps, 5)
        held = {name: value.clone() for name, value in model.state_dict().items()}
    with ServerThread(bind=f"127.0.0.1:{server.port}"):
        loss_of(model).backward()
        report = ps.step()
        assert not report.applied
        assert not report.skipped
        after = model.state_dict()
        for name, value in held.items():
            if "running" not in name and "batches" not in name:  # the step that was dropped has moved its statistics
                assert torch.equal(after[name], value), name
        train(ps, 3)
        assert ps.applied_steps == 8
        ps.close()


def test_status_shows_loss_samples_device_and_the_reports_numbers(server: ServerThread) -> None:
    with connect(server, make("perceptron"), steps_per_epoch=9) as ps:
        train(ps, 3)
        report = ps.last_report
        found = worker_status(server)
    assert report is not None
    assert report.verdict is not None
    assert report.loss == pytest.approx(found["loss"])
    assert (found["samples"], found["device"], found["commits"]) == (48, "cpu", 3)
    assert report.eta == ps.run_settings.eta
    assert report.verdict.staleness == 0
    assert min(report.compute_seconds, report.copy_seconds, report.exchange_seconds) > 0


def test_on_join_can_draw_first_parameters_and_may_not_change_the_layout(server: ServerThread) -> None:
    model = make("perceptron")
    seen: list[Membership] = []

    def prepare(membership: Membership) -> None:
        seen.append(membership)
        nn.init.constant_(model.get_parameter("3.bias"), 0.5)

    with connect(server, model, on_join=prepare) as ps:
        assert seen == [ps.membership]
        assert not seen[0].has_parameters
    with Observer(server.address) as observer:
        pulled = observer.pull()
    assert pulled is not None
    with pytest.raises(UnsupportedModelError, match="layout changed while it joined"):
        connect(server, model, name="other", on_join=lambda _: model.double()).join()
    assert worker_status(server, "other")["state"] == "WORKER_STATE_LEFT"


def test_address_and_name_come_from_the_environment(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_SERVER", server.address)
    monkeypatch.setenv("GEMPS_WORKER_NAME", "from-environment")
    with ParameterServer(model=make("perceptron")):
        assert worker_status(server, "from-environment")["rank"] == 0
    monkeypatch.delenv("GEMPS_WORKER_NAME")
    with ParameterServer(model=make("perceptron")):
        with Observer(server.address) as observer:
            names = [one["name"] for one in observer.get_status()["workers"]]
        assert any(name.endswith(f"-{os.getpid()}") for name in names)


def test_wire_types_come_from_the_environment_unless_the_script_chooses(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMPS_DELTA_WIRE", "sparse")
    monkeypatch.setenv("GEMPS_PARAMETER_WIRE", "int4")
    with (
        connect(server, make("perceptron"), name="ada"),
        connect(server, make("perceptron"), name="bob", delta_wire="bfloat16"),
    ):
        settled = [
            (status["delta_wire_type"], status["parameter_wire_type"])
            for status in (worker_status(server, name) for name in ("ada", "bob"))
        ]
    assert settled == [
        ("WIRE_TYPE_SPARSE_BLOCK", "WIRE_TYPE_INT4_BLOCK"),
        ("WIRE_TYPE_BFLOAT16", "WIRE_TYPE_INT4_BLOCK"),
    ]
    monkeypatch.setenv("GEMPS_PARAMETER_WIRE", "int2")
    with pytest.raises(ValueError, match="GEMPS_PARAMETER_WIRE='int2' is no wire type"):
        ParameterServer(server.address, make("perceptron"))


def test_missing_and_wrong_arguments_are_told_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMPS_SERVER", raising=False)
    with pytest.raises(ValueError, match="set GEMPS_SERVER"):
        ParameterServer(model=make("perceptron"))
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
        ParameterServer("127.0.0.1:1")
    with pytest.raises(ValueError, match="'int2' is no wire type here; use one of float32"):
        ParameterServer("127.0.0.1:1", make("perceptron"), delta_wire="int2")
    with pytest.raises(ValueError, match="delta_wire='int8' is gone: use int4 or bfloat16"):
        ParameterServer("127.0.0.1:1", make("perceptron"), delta_wire="int8")
    with pytest.raises(ValueError, match=r"'int2' is no wire type here; use one of float32, .*, int4, sparse"):
        ParameterServer("127.0.0.1:1", make("perceptron"), parameter_wire="int2")
    with pytest.raises(TypeError, match=r"overlap is gone: leave it out.* gemps\.serve\(local_steps=4\)"):
        ParameterServer("127.0.0.1:1", make("perceptron"), overlap=True)
    with pytest.raises(RuntimeError, match="with ParameterServer"):
        ParameterServer("127.0.0.1:1", make("perceptron")).step()


def test_a_model_can_join_one_run_after_the_other() -> None:
    model = make("batch-norm")
    for _ in range(2):
        with ServerThread(steps=5) as server:
            with connect(server, model) as ps:
                train(ps, 100)
            assert ps.applied_steps == 5
    assert model.get_parameter("0.weight").grad is not None


def test_a_server_that_never_comes_is_told_in_the_end() -> None:
    hurried = ClientSettings(connect_timeout=0.5)
    with pytest.raises(ServerUnavailableError):
        ParameterServer("127.0.0.1:9", make("perceptron"), client_settings=hurried).join()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_model_whose_parameters_have_no_elements_commits(server: ServerThread, wire: WireName) -> None:
    """It learns nothing, and nothing is wrong with it: a layer of width 0 may be all that is left to train."""
    model = nn.Linear(0, 3, bias=False)
    with connect(server, model, delta_wire=wire, parameter_wire=wire) as ps:
        for _ in range(6):
            model(torch.zeros(2, 0)).sum().backward()
            ps.step()
    assert worker_status(server)["commits"] == 6
    server.stop()
    assert load_file(server.checkpoint)["weight"].shape == (3, 0)


def test_an_optimizer_that_is_left_in_the_loop_is_warned_about_once(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with connect(server, model) as ps:
        for _ in range(3):
            ps.step(backward(model))
            optimizer.step()  # the gradients are zero already
    (warning,) = [one.getMessage() for one in caplog.records if one.name.endswith("optimizer_watch")]
    assert warning.startswith("SGD.step() has no effect on the run: ")
    assert "--eta" in warning


def test_an_optimizer_that_moves_the_parameters_between_steps_is_named_so(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with connect(server, model) as ps:
        loss = backward(model)
        optimizer.step()
        ps.step(loss)
    assert "AdamW.step() has no effect on the run, but changes the parameters until the next ps.step()" in caplog.text


def test_an_optimizer_of_another_model_or_after_the_run_is_nobodys_business(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = make("perceptron"), make("perceptron")
    with connect(server, model) as ps:
        ps.step(backward(model))
        backward(other)
        torch.optim.SGD(other.parameters(), lr=0.1).step()
    backward(model)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert "has no effect" not in caplog.text
