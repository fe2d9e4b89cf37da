"""What a script sees of the end of its run: one normal step more, `finished`, and only then RunFinishedError."""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, Observer, ParameterServer, RunFinishedError
from gem_worker.client import Client, ServerUnavailableError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import SGD

from tests.worker.loops import backward, train, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

IMPATIENT = ClientSettings(connect_timeout=20)
WAYS = {
    "stream": {},
    "shared memory": {},
    "optimizer": {"every": 2},
    "local steps": {},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serving(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ServerThread]:
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    place: dict[str, Any] = {"shared_memory_socket": tmp_path / "memory"} if way == "shared memory" else {}
    place |= {"local_steps": 2} if way == "local steps" else {}
    place |= {"rule": "adaptive-staleness"} if way == "optimizer" else {}
    return lambda **settings: ServerThread(data_dir=tmp_path / "state", **place, **settings)


def connect(server: ServerThread, model: nn.Module, way: str = "stream", **settings: Any) -> ParameterServer:
    optimizer = SGD(model.parameters(), 0.1) if way == "optimizer" else None
    fields = {"name": "w", "optimizer": optimizer, "client_settings": IMPATIENT} | WAYS[way]
    return ParameterServer(server.address, model, **(fields | settings))


def held(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(model: nn.Module, kept: dict[str, Tensor]) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[name]), name


def test_code_behind_the_step_that_spends_the_budget_runs_with_the_newest_parameters(
    way: str, serving: Callable[..., ServerThread]
) -> None:
    """And the model is as it was there after the block, though the loop computed one batch more, with BatchNorm."""
    model = make("batch-norm")
    evaluated = []
    with serving(steps=4) as server:
        with connect(server, model, way) as ps:
            while True:
                ps.step(backward(model), samples=16)
                evaluated.append((ps.finished, held(model)))
        last = [kept for is_finished, kept in evaluated if is_finished]
        assert len(last) == 1
        assert ps.finished
        assert ps.applied_steps == worker_status(server)["commits"] == 4
        assert ps.last_report is not None
        assert ps.last_report.applied
        server.stop()
        assert_equal(model, last[0])
        assert_equal(model, load_file(server.checkpoint))


def test_a_loop_that_asks_whether_the_run_is_finished_computes_nothing_in_vain(
    way: str, serving: Callable[..., ServerThread]
) -> None:
    model = make("batch-norm")
    steps = 0
    with serving(steps=3) as server:
        with connect(server, model, way) as ps:
            while not ps.finished:
                ps.step(backward(model))
                steps += 1
            kept = held(model)
        assert steps == {"optimizer": 6, "local steps": 6}.get(way, 3)
        assert worker_status(server)["state"] == "WORKER_STATE_FINISHED"
        server.stop()
        assert_equal(model, kept)
        assert_equal(model, load_file(server.checkpoint))


def test_a_worker_whose_run_others_finished_gets_one_report_and_the_newest_parameters(
    way: str, serving: Callable[..., ServerThread]
) -> None:
    model, other = make("batch-norm", 1), make("batch-norm", 2)
    with serving(commits=3) as server, connect(server, other, way, name="other") as end:
        with connect(server, model, way) as ps:
            before = ps.last_report
            loss = backward(model)
            while not end.finished:
                end.step(backward(other))
            report = ps.step(loss)
            while report.local:
                report = ps.step(backward(model))
            assert (report.applied, report.skipped, report.verdict) == (False, False, None)
            assert ps.finished
            assert ps.last_report is before
            assert ps.version == end.version == report.version
            assert_equal(model, held(other))
            ps.step(backward(model))
            pytest.fail("the run has ended")
        assert_equal(model, held(other))
        assert (ps.applied_steps, end.applied_steps) == (0, 3)
        assert worker_status(server)["commits"] == 0


def test_a_worker_of_a_finished_run_never_enters_a_loop_that_asks() -> None:
    with ServerThread(commits=1, run="digits") as server:
        with connect(server, make("perceptron")) as ps:
            assert not ps.finished
            train(ps, 1)
        with connect(server, make("perceptron", 1), name="late", run="digits") as ps:
            assert ps.finished
            with pytest.raises(RunFinishedError):
                train(ps, 1)


def test_a_script_that_steps_its_optimizer_after_the_end_and_exchanges_keeps_the_runs_model(tmp_path: Path) -> None:
    """Also if it leaves the loop without another exchange."""
    for exchanges_again in (True, False):
        model = make("batch-norm")
        optimizer = SGD(model.parameters(), 0.1)
        with ServerThread(rule="adaptive-staleness", steps=2) as server:
            with connect(server, model, optimizer=optimizer) as ps:
                while not ps.finished:
                    backward(model)
                    optimizer.step()
                    optimizer.zero_grad()
                    ps.exchange()
                kept = held(model)
                backward(model)
                optimizer.step()
                if exchanges_again:
                    ps.exchange()
                    pytest.fail("the run has ended")
            assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), _parameters_in(kept, model))
            assert worker_status(server)["commits"] == 2


def _parameters_in(kept: dict[str, Tensor], model: nn.Module) -> Tensor:
    return torch.cat([kept[name].flatten() for name, _ in model.named_parameters()])


def test_what_a_script_does_to_weights_after_the_last_step_stays() -> None:
    model = make("perceptron")
    with ServerThread(steps=2) as server, connect(server, model) as ps:
        while True:
            ps.step(backward(model))
            if ps.finished:
                with torch.no_grad():
                    model[3].bias.fill_(0.25)
    assert bool((model[3].bias == 0.25).all())


def test_an_except_that_hides_the_end_of_the_run_ends_the_block_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make("perceptron")
    caught: list[Exception] = []
    with ServerThread(steps=2) as server, caplog.at_level(logging.WARNING):
        with connect(server, model) as ps:
            while True:
                try:
                    train(ps, 1)
                except Exception as error:
                    caught.append(error)
        assert worker_status(server)["commits"] == ps.applied_steps == 2
        assert worker_status(server)["state"] == "WORKER_STATE_FINISHED"
    assert [type(error) for error in caught] == [RunFinishedError] * 3
    (record,) = caplog.records
    assert "loops.py:" in record.getMessage()
    assert "except Exception" in record.getMessage()


def test_without_a_with_block_the_script_ends_with_exit_code_0() -> None:
    with ServerThread(steps=1) as server:
        ps = connect(server, make("perceptron"))
        ps.join()
        train(ps, 1)
        for _ in range(3):
            with pytest.raises(RunFinishedError):
                train(ps, 1)
        with pytest.raises(SystemExit) as caught:
            train(ps, 1)
        assert not caught.value.code
        ps.close()


def test_a_server_that_ends_before_the_newest_parameters_arrived_leaves_whole_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def overwrite_a_part(self: Client, into: memoryview) -> None:
        into[: len(into) // 2] = bytes(len(into) // 2)
        raise ServerUnavailableError("the connection was cut")

    model = make("batch-norm")
    with ServerThread() as server, connect(server, model) as ps:
        train(ps, 2)
        with Observer(server.address) as observer:
            observer.control("finish", "enough")
        kept = held(model)
        monkeypatch.setattr(Client, "pull", overwrite_a_part)
        loss = backward(model)
        assert not ps.step(loss).applied
        monkeypatch.undo()
        for _ in range(2):
            parameters = nn.utils.parameters_to_vector(model.parameters())
            assert torch.equal(parameters, _parameters_in(kept, model))
            with suppress(RunFinishedError):
                train(ps, 1)
    assert "did not arrive" in caplog.text
