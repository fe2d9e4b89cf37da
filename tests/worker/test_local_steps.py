"""Steps that a worker takes by itself between two commits, against a real server whose rule asks for them."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ParameterServer, RunFinishedError, StepReport
from torch import Tensor, nn

from tests.worker.loops import train, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

IMPATIENT = ClientSettings(connect_timeout=20)
ETA = 0.125
START = torch.tensor([1.0, -2.0, 4.0])
CURVATURES = torch.tensor([0.5, 1.0, 2.0])


class Quadratic(nn.Module):
    """A loss whose gradient at w is CURVATURES * w, so that where a gradient is taken shows."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(START.clone())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self) -> Tensor:
        self.seen.add_(1)
        return (CURVATURES * self.w**2).sum() / 2


def step(ps: ParameterServer, model: Quadratic, factor: float = 1.0) -> StepReport:
    loss = factor * model()
    loss.backward()
    return ps.step(loss, samples=10)


def after_local_steps(count: int) -> Tensor:
    """Return the worker's parameters after this number of steps of plain SGD from START."""
    return START * (1 - ETA * CURVATURES) ** count


@pytest.fixture(params=["stream", "shared memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Settings of a server that exchanges one way or the other."""
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    return {"shared_memory_socket": tmp_path / "memory"} if request.param == "shared memory" else {}


def test_a_worker_without_memory_for_local_steps_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("gem_worker.parameter_server.LocalSteps", fail)
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA) as server:
        ps = ParameterServer(server.address, Quadratic(), client_settings=IMPATIENT, name="w")
        with pytest.raises(RuntimeError, match="out of memory"):
            ps.__enter__()
        assert worker_status(server)["state"] == "WORKER_STATE_LEFT"


def test_agn_commits_the_mean_of_its_local_steps(place: dict[str, Path]) -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA, **place) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            for done in (1, 2):
                assert step(ps, model).local
                assert torch.allclose(model.w, after_local_steps(done))
            report = step(ps, model)
            assert report.applied
            assert not report.local
            assert report.samples == 30
            expected = START + (after_local_steps(3) - START) / 3
            assert torch.allclose(model.w, expected)
            for _ in range(3):
                step(ps, model)
            assert torch.allclose(model.w, expected + expected / START * (after_local_steps(3) - START) / 3)
            assert ps.applied_steps == 2


def test_gem_commits_the_mean_of_shorter_local_steps(place: dict[str, Path]) -> None:
    chosen = {"local_steps": 3, "rule_settings": "local_rate=0.5,momentum=0"}
    with ServerThread(rule="gem", eta=ETA, **chosen, **place) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            for done in (1, 2):
                assert step(ps, model).local
                assert torch.allclose(model.w, START * (1 - ETA / 2 * CURVATURES) ** done)
            assert step(ps, model).applied
            shorter = START * (1 - ETA / 2 * CURVATURES) ** 3
            assert torch.allclose(model.w, START + (shorter - START) / 3 / 0.5)


@pytest.mark.parametrize("first", [1.0, float("inf")])
def test_local_steps_are_scaled_by_what_was_committed(first: float, place: dict[str, Path]) -> None:
    chosen = {"local_steps": 2, "rule_settings": "local_rate=0.5", "direction": "rms"}
    with ServerThread(rule="gem", eta=ETA, **chosen, **place) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            if first != 1.0:
                step(ps, model)
                assert step(ps, model, factor=first).skipped
            step(ps, model)
            assert torch.equal(model.w, START), "there is no commit yet"
            assert step(ps, model).applied
            committed = [CURVATURES * START]
            for factor in (3.0, 0.5, 1000.0):
                begun = model.w.detach().clone()
                step(ps, model, factor=factor)
                shares = 0.99 ** torch.arange(len(committed) - 1.0, -1.0, -1.0)[:, None]
                mean = (shares * torch.stack(committed) ** 2).sum(0) / shares.sum()
                sizes = factor * CURVATURES * begun / mean.sqrt()
                assert torch.allclose(model.w, begun - ETA / 2 * sizes.clamp(-5, 5))
                committed.append(factor * CURVATURES * (begun + model.w.detach()) / 2)
                assert step(ps, model, factor=factor).applied


def test_the_end_of_the_block_commits_what_is_left(place: dict[str, Path]) -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA, **place) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, name="w", client_settings=IMPATIENT) as ps:
            for _ in range(3):
                step(ps, model)
            first = START + (after_local_steps(3) - START) / 3
            step(ps, model)
            step(ps, model)
        assert torch.allclose(model.w, first + first / START * (after_local_steps(2) - START) / 2)
        found = worker_status(server)
        assert (found["commits"], found["local_steps"], found["samples"]) == (2, 5, 50)


def test_at_the_end_of_the_run_local_steps_are_undone(place: dict[str, Path]) -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA, commits=1, **place) as server:
        one, other = Quadratic(), Quadratic()
        with (
            ParameterServer(server.address, one, name="one", client_settings=IMPATIENT) as first,
            ParameterServer(server.address, other, name="other", client_settings=IMPATIENT) as second,
        ):
            for _ in range(3):
                step(first, one)
            reports = [step(second, other) for _ in range(3)]
            assert [report.local for report in reports] == [True, True, False]
            assert not reports[-1].applied
            assert second.finished
            assert torch.equal(other.w, one.w)
            step(second, other)
            pytest.fail("the run has ended")
        assert torch.equal(other.w, one.w)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_exception_between_commits_undoes_local_steps(error: type[BaseException]) -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA) as server:
        model = Quadratic()
        with suppress(error), ParameterServer(server.address, model, name="w", client_settings=IMPATIENT) as ps:
            step(ps, model)
            raise error
        assert torch.equal(model.w, START)
        assert worker_status(server)["commits"] == 0


@pytest.mark.parametrize("direction", ["gradient", "rms"])
def test_one_overflow_halves_a_loss_scale_once(direction: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ServerThread(local_steps=4, direction=direction, eta=0.01) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            for number in range(8):
                loss = model() * (float("inf") if number == 4 else 1.0)
                scaler.scale(loss).backward()
                report = ps.step(loss, scaler=scaler)
            assert report.skipped
            assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("direction", ["gradient", "rms"])
def test_half_precision_sums_in_float32(direction: Any) -> None:
    """The sum of these gradients is larger than float16 can represent."""
    chosen = {"direction": direction, "rule_settings": "local_rate=0,momentum=0"}
    with ServerThread(local_steps=4, eta=1e-5, **chosen) as server:
        model = Quadratic()
        model.w = nn.Parameter(torch.tensor([30000.0, -30000.0, 30000.0], dtype=torch.float16))
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            for _ in range(4):
                model.w.grad = torch.full((3,), 40000.0, dtype=torch.float16)
                report = ps.step()
            assert report.applied


def test_easgd_commits_their_sum_and_gets_its_own_parameters_back(place: dict[str, Path]) -> None:
    chosen = "period=2,alpha=0.25"
    with ServerThread(rule="easgd", rule_settings=chosen, eta=ETA, **place) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            step(ps, model)
            step(ps, model)
            moved = after_local_steps(2) - START
            assert torch.allclose(model.w, START + 0.75 * moved)
            assert torch.allclose(torch.from_numpy(server.server.central.parameters), START + 0.25 * moved)


def test_budgets_count_commits() -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA, steps=2) as server:
        model = Quadratic()
        ps = ParameterServer(server.address, model, client_settings=IMPATIENT)
        ps.join()
        reports = [step(ps, model) for _ in range(6)]
        assert [report.local for report in reports] == [True, True, False, True, True, False]
        with pytest.raises(RunFinishedError):
            step(ps, model)
        ps.close()
        assert server.server.central.clock == 3


def test_a_gradient_that_is_not_finite_takes_the_local_steps_with_it(place: dict[str, Path]) -> None:
    with ServerThread(rule="agn", rule_settings="local_steps=3", eta=ETA, **place) as server:
        model = Quadratic()
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            step(ps, model)
            step(ps, model, factor=float("inf"))
            report = step(ps, model)
            assert report.skipped
            assert torch.equal(model.w, START)
            assert model.seen == 0
            for _ in range(3):
                report = step(ps, model)
            assert report.applied
            assert torch.allclose(model.w, START + (after_local_steps(3) - START) / 3)
            assert ps.skipped_steps == 1


@pytest.mark.parametrize("direction", ["gradient", "auto"])
@pytest.mark.parametrize("wires", [("float32", "float32"), ("sparse", "int4")])
def test_workers_learn_with_local_steps(direction: Any, wires: Any) -> None:
    eta = 0.05 if direction == "gradient" else 0.002
    with ServerThread(direction=direction, local_steps=4, eta=eta) as server:
        models, losses = [make("batch-norm") for _ in range(3)], []

        def work(number: int) -> None:
            chosen = {"delta_wire": wires[0], "parameter_wire": wires[1]}
            with ParameterServer(
                server.address, models[number], name=f"{number}", client_settings=IMPATIENT, **chosen
            ) as ps:
                losses.append(train(ps, 60))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(losses) == 3
        assert all(one[-1] < 0.9 * one[0] for one in losses)
