"""ParameterServer(overlap=True) against a real server: gradients that were computed while a commit was in flight."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gem_server.state.sessions import Sessions
from gem_worker import (
    ClientSettings,
    DivergedError,
    ParameterServer,
    RunFinishedError,
    ServerRefusedError,
    ServerUnavailableError,
)
from gem_worker.client import MisuseError, RunState
from gem_worker.flat_model import FlatModel
from gem_worker.transfer import Transfer
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from gem_trace import read_records, replay
from gem_trace.files import map_file
from tests.client.cutting_proxy import CuttingProxy
from tests.core import slow
from tests.waiting import eventually
from tests.worker.loops import backward, train, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import ZOO, a_batch, make

# Pauses are short, because nobody has to be spared.
IMPATIENT = ClientSettings(connect_timeout=20, backoff_first=0.01, backoff_limit=0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(data_dir=tmp_path / "state") as running:
        yield running


def connect(address: str, model: nn.Module, **settings: Any) -> ParameterServer:
    fields = {"name": "w", "overlap": True, "client_settings": IMPATIENT}
    return ParameterServer(address, model, **(fields | settings))


def settle(ps: ParameterServer) -> None:
    """Return when the commit in flight is back; the next step collects it."""
    eventually(lambda: ps.client.version != ps.version and not ps.client.is_calling)


@pytest.mark.parametrize("kind", ZOO)
def test_every_kind_of_model_trains_and_holds_the_last_commits_version_at_the_end(
    kind: str, server: ServerThread
) -> None:
    model = make(kind)
    with connect(server.address, model) as ps:
        assert ps.membership.overlap
        losses = train(ps, 40)
    assert losses[-1] < 0.95 * losses[0]
    assert ps.applied_steps == 40
    server.stop()
    for name, value in load_file(server.checkpoint).items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("kind", ["perceptron", "batch-norm", "tied-weights", "channels-last", "float64"])
def test_one_downpour_worker_is_sgd_with_gradients_one_step_old(kind: str) -> None:
    """p[k] = p[k-1] - eta g(p[k-2]), and g(p[0]) twice at first; BUFFERs see every batch, one after the other."""
    reference, model = make(kind), make(kind)
    with ServerThread(rule="downpour", eta=0.05) as server, connect(server.address, model) as ps:
        train(ps, 10)
    trained = [one for one in reference.parameters() if one.requires_grad]
    newest = [one.detach().clone() for one in trained]
    for _ in range(10):
        before = [one.detach().clone() for one in newest]
        reference.zero_grad()
        backward(reference)
        for value, one in zip(newest, trained, strict=True):
            if one.grad is not None:
                value -= 0.05 * one.grad
        with torch.no_grad():  # the next gradient is of what was the newest before this one was applied
            for one, value in zip(trained, before, strict=True):
                one.copy_(value)
    with torch.no_grad():
        for one, value in zip(trained, newest, strict=True):
            one.copy_(value)
    for name, value in reference.state_dict().items():
        assert torch.allclose(model.state_dict()[name].double(), value.double(), atol=1e-5), name


def test_each_gradient_is_of_the_version_that_its_commit_names_and_theta_minus_s_is_exact(tmp_path: Path) -> None:
    """Three workers at once, and a skipped step: everything is computed again from what the server recorded.

    Each delta is -eta times the gradient at the recorded base, bit for bit, and theta that of the equations in float32
    with s = the parameters of that base.
    """
    path, kind, steps = tmp_path / "run.trace", "perceptron", 12
    torch.set_num_threads(1)
    with ServerThread(record=path, eta=0.125) as server:

        def work(number: int) -> None:
            model = make(kind)
            with connect(server.address, model, name=str(number)) as ps:
                everybody.wait()
                for step in range(steps):
                    loss = backward(model, seed=number)
                    if step == 5:
                        model.get_parameter(next(iter(dict(model.named_parameters())))).grad.fill_(float("nan"))
                    ps.step(loss)

        everybody = threading.Barrier(3)
        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert replay(path).compared_end

    model = make(kind)
    flat = FlatModel(model)
    versions: dict[int, np.ndarray] = {}
    names: dict[int, str] = {}
    moments: dict[int, np.ndarray] = {}
    bases: dict[int, list[int]] = {}
    for record in read_records(map_file(path)):
        event = record.event
        if event["event"] == "parameters":
            versions[1] = np.frombuffer(record.payload, np.float32, flat.layout.parameter_count)
        elif event["event"] == "joined":
            assert event["overlap"]
            names[event["session"]] = event["worker"]
        elif event["event"] == "committed":
            number, clock, base = event["session"], event["clock"], event["base"]
            delta = np.frombuffer(record.payload, np.float32, flat.layout.parameter_count)
            flat.write_parameters(torch.from_numpy(versions[base].copy()))
            flat.zero_gradients()
            backward(model, seed=int(names[number]))
            flat.collect_gradients()
            expected = torch.empty(flat.layout.parameter_count)
            flat.read_gradients(expected)
            expected *= -0.125
            np.testing.assert_array_equal(delta, expected.numpy(), err_msg=f"clock {clock}, base {base}")
            moment = moments.get(number, np.zeros_like(delta))
            found = slow.gem(versions[clock - 1], versions[base], moment, delta, slow.GemSettings(), np.float32)
            versions[clock], moments[number] = found.theta, found.moment
            bases.setdefault(number, []).append(base)
    np.testing.assert_array_equal(replay(path).parameters, versions[max(versions)])
    assert [len(of_one) for of_one in bases.values()] == [steps - 1] * 3
    for of_one in bases.values():
        # Twice at the first parameters; and twice at those that came while the step that was skipped was computed.
        assert of_one[0] == of_one[1]
        assert of_one[5] == of_one[6]
        assert len(set(of_one)) == steps - 3


def test_a_step_returns_before_its_commit_is_applied(tmp_path: Path) -> None:
    """By turns, and it is the other's: this worker computes on, and waits in its next step only."""
    with ServerThread(order="round-robin", min_workers=2) as server:
        other, model = make("perceptron", 1), make("perceptron", 1)
        first = connect(server.address, other, name="first", overlap=False)
        joining = threading.Thread(target=first.join)
        joining.start()
        while not server.server.sessions.live():
            pass
        with connect(server.address, model, name="second") as ps:
            joining.join()
            loss = backward(model)
            report = ps.step(loss)
            assert report.under_way
            assert not report.applied
            assert ps.last_report is None
            assert worker_status(server, "second")["commits"] == 0
            backward(model)
            backward(other)
            first.step()
            following = ps.step()
            assert following.applied
            assert following.loss == loss.item()
            assert following.verdict is not None
            assert following.verdict.staleness == 1
            backward(other)
            first.step()
        first.close()
        assert worker_status(server, "second")["commits"] == 2


def test_a_report_is_of_the_step_before_and_the_last_one_comes_with_the_end(server: ServerThread) -> None:
    model = make("perceptron")
    with connect(server.address, model) as ps:
        losses, reports = [], []
        for number in range(4):
            loss = backward(model, seed=number)
            losses.append(loss.item())
            reports.append(ps.step(loss, samples=number))
        reports = [*reports[1:], ps.last_report]
        assert reports[-1] is reports[-2]
    reports[-1] = ps.last_report
    assert [report.loss for report in reports] == losses
    assert [report.samples for report in reports] == [0, 1, 2, 3]
    assert [report.verdict.sequence for report in reports] == [1, 2, 3, 4]
    assert [report.verdict.staleness for report in reports] == [0, 1, 1, 1]
    assert reports[-1].version == ps.version
    assert not any(report.under_way for report in reports)
    assert all(min(one.compute_seconds, one.copy_seconds) > 0 for one in reports)


def test_the_last_commit_of_the_block_is_waited_for(server: ServerThread) -> None:
    for steps in (1, 2):
        with connect(server.address, make("perceptron"), name=f"w{steps}") as ps:
            train(ps, steps)
            assert worker_status(server, f"w{steps}")["overlap"]
        assert worker_status(server, f"w{steps}")["commits"] == ps.applied_steps == steps


def test_the_end_of_the_run_is_absorbed_and_the_model_holds_its_last_version(tmp_path: Path) -> None:
    """The gradient that was computed while the last commit was in flight is dropped, its BUFFERs too."""
    model = make("batch-norm")
    with ServerThread(steps=7, data_dir=tmp_path) as server:
        with connect(server.address, model) as ps:
            train(ps, 1000)
        assert ps.applied_steps == 7
        assert ps.run_state is RunState.FINISHED
        assert ps.last_report is not None
        assert ps.last_report.applied
        assert worker_status(server)["state"] == "WORKER_STATE_FINISHED"
        server.stop()
        for name, value in load_file(server.checkpoint).items():
            assert torch.equal(model.state_dict()[name], value), name


def test_a_commit_beyond_the_budget_ends_the_loop(tmp_path: Path) -> None:
    """Two workers share it: one's commit in flight is refused, because the other has spent the rest."""
    with ServerThread(commits=3) as server:
        one, other = make("perceptron"), make("perceptron")
        with connect(server.address, one, name="one") as ps, connect(server.address, other, name="other") as second:
            train(ps, 2)
            train(second, 1)
            with pytest.raises(RunFinishedError):
                train(ps, 5)
            with pytest.raises(RunFinishedError):
                train(second, 5)
        assert ps.applied_steps + second.applied_steps == 3


def test_a_worker_that_joins_a_finished_run_ends_at_its_first_step() -> None:
    model, late = make("perceptron"), make("perceptron", 1)
    with ServerThread(steps=3) as server:
        with connect(server.address, model) as ps:
            train(ps, 10)
        with connect(server.address, late, name="late") as ps:
            assert all(torch.equal(late.state_dict()[name], value) for name, value in model.state_dict().items())
            with pytest.raises(RunFinishedError):
                train(ps, 2)
        assert ps.applied_steps == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_the_statistics_of_its_batch_go(server: ServerThread) -> None:
    model = make("batch-norm")
    with connect(server.address, model) as ps:
        train(ps, 3)
        inputs, labels = a_batch()
        functional.cross_entropy(model(inputs * float("nan")), labels).backward()
        report = ps.step()
        assert report.applied  # the step before
        held = {name: value.clone() for name, value in model.state_dict().items()}
        assert all(value.isfinite().all() for value in held.values())
        assert ps.skipped_steps == 1
        assert int(model.state_dict()[next(name for name in held if "num_batches" in name)]) == 3
        backward(model)
        report = ps.step()
        assert report.skipped
        assert report.version is not None
        train(ps, 2)
    assert (ps.applied_steps, ps.skipped_steps) == (6, 1)
    assert worker_status(server)["commits"] == 6


def test_a_first_step_that_is_skipped_is_reported_by_the_second(server: ServerThread) -> None:
    model = make("perceptron")
    with connect(server.address, model) as ps:
        backward(model)
        for parameter in model.parameters():
            parameter.grad.fill_(float("inf"))
        assert not ps.step().skipped
        backward(model)
        assert ps.step().skipped
        backward(model)
        assert ps.step().applied


def test_a_hundred_gradients_in_a_row_that_are_not_finite_are_divergence(server: ServerThread) -> None:
    model = make("perceptron")
    ps = connect(server.address, model)

    def overflow_after_five() -> None:
        with ps:
            train(ps, 5)
            while True:
                backward(model)
                for parameter in model.parameters():
                    parameter.grad.fill_(float("inf"))
                ps.step()

    with pytest.raises(DivergedError, match="smaller --eta"):
        overflow_after_five()
    assert (ps.applied_steps, ps.skipped_steps) == (5, 100)
    assert worker_status(server)["state"] == "WORKER_STATE_LEFT"


def test_training_with_a_scaler_skips_what_overflowed(server: ServerThread) -> None:
    model = make("perceptron")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with connect(server.address, model) as ps:
        for step in range(12):
            inputs, labels = a_batch()
            loss = functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            if step == 4:
                next(model.parameters()).grad.fill_(float("inf"))
            ps.step(loss, scaler=scaler)
    assert (ps.applied_steps, ps.skipped_steps) == (11, 1)
    assert scaler.get_scale() == 2.0**39


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_leaves_the_run_and_goes_on(error: type[BaseException], server: ServerThread) -> None:
    ps = connect(server.address, make("perceptron"))

    def stop_after_three() -> None:
        with ps:
            train(ps, 3)
            raise error("of the loop")

    with pytest.raises(error, match="of the loop"):
        stop_after_three()
    found = worker_status(server)
    assert found["state"] == "WORKER_STATE_LEFT"
    if error is ValueError:
        assert found["commits"] == ps.applied_steps == 3
    assert not any(thread.name == "gemps-commits" for thread in threading.enumerate())


def test_an_exception_does_not_wait_for_long_for_a_commit_that_waits_for_others() -> None:
    """By turns, and the other never comes: the commit in flight is given up, and the worker leaves."""
    patience = ClientSettings(connect_timeout=20, leave_timeout=0.5)
    with ServerThread(order="round-robin", min_workers=2) as server:
        first = connect(server.address, make("perceptron"), name="first", overlap=False)
        joining = threading.Thread(target=first.join)
        joining.start()
        while not server.server.sessions.live():
            pass
        for error in (KeyboardInterrupt, ValueError):
            ps = connect(server.address, make("perceptron"), name=error.__name__, client_settings=patience)

            def stop_after_one(ps: ParameterServer = ps, error: type[BaseException] = error) -> None:
                with ps:
                    joining.join()
                    train(ps, 1)
                    raise error

            with pytest.raises(error):
                stop_after_one()
            assert worker_status(server, error.__name__)["state"] == "WORKER_STATE_LEFT"
        first.close()


def test_a_server_that_is_gone_is_told_by_the_next_step_or_the_end_of_the_block() -> None:
    gone = ClientSettings(connect_timeout=0.5, backoff_first=0.01, backoff_limit=0.05, leave_timeout=0.5)
    for is_told_by_step in (True, False):
        with ServerThread() as server:
            ps = connect(server.address, make("perceptron"), client_settings=gone)
            ps.join()
            train(ps, 2)
            settle(ps)
        train(ps, 1)
        with pytest.raises(ServerUnavailableError):
            train(ps, 1) if is_told_by_step else ps.close()
        if is_told_by_step:
            train(ps, 1)
            with pytest.raises(MisuseError, match="pull"):
                train(ps, 1)
            ps.close()


def test_a_delta_that_the_server_refuses_is_told_by_the_next_step(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("perceptron")
    with connect(server.address, model) as ps:
        train(ps, 2)
        settle(ps)
        monkeypatch.setattr(Transfer, "stage", _staged_nan(Transfer.stage))
        backward(model)
        ps.step()
        monkeypatch.undo()
        backward(model)
        with pytest.raises(ServerRefusedError, match="BAD_VALUE"):
            ps.step()
        train(ps, 3)
    assert worker_status(server)["commits"] == ps.applied_steps


def _staged_nan(stage: Any) -> Any:
    def staged(transfer: Transfer, *arguments: Any) -> Any:
        found = stage(transfer, *arguments)
        transfer.delta[:4] = np.float32(np.nan).tobytes()
        return found

    return staged


def test_a_resumed_server_drops_what_was_computed_before_it_and_training_goes_on(tmp_path: Path) -> None:
    """Neither the commit that finds it nor the gradient that was computed meanwhile is applied: both are too old."""
    model, path = make("batch-norm"), tmp_path / "run.trace"
    with ServerThread(data_dir=tmp_path / "data", record=path) as server:
        ps = connect(server.address, model)
        ps.join()
        train(ps, 5)
        settle(ps)
    settings = {"bind": server.address, "data_dir": tmp_path / "data", "resume": True, "record": path}
    with ServerThread(**settings) as resumed:
        reports = [ps.step(backward(model)) for _ in range(6)]
        ps.close()
        assert ps.last_report is not None
        reports.append(ps.last_report)
        # The first server has applied the fifth step; the commit that finds the second, and the one after, are dropped.
        assert [report.applied for report in reports] == [True, False, False, True, True, True, True]
        assert not any(report.skipped for report in reports)
        assert ps.applied_steps == 9
        assert resumed.server.central.clock == 10
        assert worker_status(resumed)["commits"] == 9
        resumed.stop()
        for name, value in load_file(resumed.checkpoint).items():
            assert torch.equal(model.state_dict()[name], value), name
    assert replay(path).compared_end


def test_a_server_that_was_started_anew_and_empty_gets_the_workers_parameters() -> None:
    model = make("batch-norm")
    with ServerThread() as server:
        ps = connect(server.address, model)
        ps.join()
        train(ps, 5)
        settle(ps)
    with ServerThread(bind=server.address) as anew:
        train(ps, 6)
        ps.close()
        assert anew.server.central.clock - 1 == ps.applied_steps - 5 == 4
        assert ps.last_report is not None
        assert ps.last_report.applied


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_cut_connections_apply_every_gradient_once(direction: Any, tmp_path: Path) -> None:
    """The connection is cut again and again, in headers, deltas, verdicts and replies."""
    model, path = Wide(), tmp_path / "run.trace"
    with ServerThread(record=path, chunk_bytes=4096) as server:
        proxy = CuttingProxy(server.port)
        try:
            with connect(proxy.address, model) as ps:
                train(ps, 2)
                payload = 4 * server.server.central.layout.parameter_count
                cuts = [int(payload * share) + 13 for share in (0.2, 0.7, 1.1, 1.9, 0.4, 0.05, 1.5, 2.3)]
                proxy.cut_after(direction, *cuts)
                train(ps, 30)
            assert proxy.cuts == len(cuts)
        finally:
            proxy.close()
        assert ps.applied_steps == 32
        assert server.server.central.clock == 33
        assert worker_status(server)["commits"] == 32
    found = replay(path)
    assert found.compared_end
    assert found.commits == 32


def test_a_server_that_grants_no_overlap_is_trained_with_without(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    join = Sessions.join
    monkeypatch.setattr(Sessions, "join", lambda self, asked, now: join(self, replace(asked, overlap=False), now))
    with connect(server.address, make("perceptron")) as ps:
        train(ps, 3)
        assert ps.last_report is not None
        assert ps.last_report.verdict is not None
        assert (ps.last_report.verdict.sequence, ps.last_report.verdict.staleness) == (3, 0)
    assert "no overlap" in caplog.text


@pytest.mark.parametrize("overlap", [False, True])
def test_over_shared_memory_the_same_comes_out(overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas are staged in the memory that is shared; without overlap parameters are installed from it, too."""
    held = []
    stage = Transfer.stage

    def staged(transfer: Transfer, eta: float, loss: Any, shared: memoryview | None = None) -> Any:
        found = stage(transfer, eta, loss, shared)
        places.append(shared is not None and address(transfer.delta) == address(shared))
        return found

    monkeypatch.setattr(Transfer, "stage", staged)
    for socket in (None, tmp_path / "memory"):
        places: list[bool] = []
        model = Wide()
        with ServerThread(shared_memory_socket=socket) as server, connect(server.address, model, overlap=overlap) as ps:
            train(ps, 12)
            assert ps.shares_memory == (socket is not None)
        assert set(places) == ({True} if socket is not None else {False})
        assert ps.applied_steps == 12
        held.append({name: value.clone() for name, value in model.state_dict().items()})
    for name, value in held[0].items():
        assert torch.equal(value, held[1][name]), name


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


class Wide(nn.Module):
    """More than 64 KiB, which is where shared memory begins; with BUFFERs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 10)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(inputs)
        return found
