"""A worker with its own optimizer, against real servers: what it commits, and what it refuses."""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import (
    ClientSettings,
    DivergedError,
    Observer,
    ParameterServer,
    RunFinishedError,
    StepReport,
    UnsupportedOptimizerError,
)
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from tests.worker.loops import loss_of, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

IMPATIENT = ClientSettings(connect_timeout=20)


@pytest.fixture(params=["stream", "shared memory"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """A server whose rule adds deltas, so that one worker's training is that of its optimizer."""
    place = {"shared_memory_socket": tmp_path / "memory"} if request.param == "shared memory" else {}
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    with ServerThread(rule="downpour", **place) as running:
        yield running


def connect(server: ServerThread, model: nn.Module, optimizer: Optimizer, **settings: Any) -> ParameterServer:
    more = {"name": "w"} | settings
    return ParameterServer(server.address, model, optimizer=optimizer, client_settings=IMPATIENT, **more)


def adamw(model: nn.Module, **settings: Any) -> AdamW:
    """Return AdamW with an epsilon above rounding errors, which it would otherwise normalise where a gradient is 0."""
    return AdamW(model.parameters(), **({"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3} | settings))


def backward(model: nn.Module, seed: int = 0) -> Tensor:
    loss = loss_of(model, seed)
    loss.backward()
    return loss


def train(ps: ParameterServer, steps: int, first: int = 0) -> list[StepReport]:
    return [ps.step(backward(ps.model, seed), samples=16) for seed in range(first, first + steps)]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def train_alone(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 0) -> None:
    for seed in range(first, first + steps):
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()


def assert_alike(model: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    states = (one.state_dict() for one in (model, other))
    for (name, value), expected in zip(next(states).items(), next(states).values(), strict=True):
        assert torch.allclose(value.double(), expected.double(), atol=tolerance), name


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("kind", ["perceptron", "batch-norm", "tied-weights", "channels-last", "float64"])
def test_one_worker_with_adamw_is_adamw(kind: str, every: int, server: ServerThread) -> None:
    model, alone = make(kind), make(kind)
    with connect(server, model, adamw(model), every=every) as ps:
        reports = train(ps, 12)
    train_alone(alone, adamw(alone), 12)
    assert_alike(model, alone)
    assert [report.local for report in reports] == [number % every != 0 for number in range(1, 13)]
    assert ps.applied_steps == 12 // every


@pytest.mark.parametrize(
    "create",
    [
        lambda model: adamw(model, foreach=True),
        lambda model: adamw(model, foreach=False),
        lambda model: adamw(model, fused=True),
        lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, foreach=True),
        lambda model: Adagrad(model.parameters(), lr=0.05),
        lambda model: AdamW(
            [
                {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": 0.1},
                {"params": [one for one in model.parameters() if one.ndim <= 1], "lr": 0.05},
            ],
            lr=0.01,
            weight_decay=0.0,
        ),
    ],
    ids=["foreach", "for-loop", "fused", "nesterov", "adagrad", "groups"],
)
def test_every_implementation_steps_on_views_of_the_flat_buffers(
    create: Callable[[nn.Module], Optimizer], server: ServerThread
) -> None:
    model, alone = make("perceptron"), make("perceptron")
    with connect(server, model, create(model), every=3) as ps:
        train(ps, 9)
    train_alone(alone, create(alone), 9)
    assert_alike(model, alone)


def test_a_script_keeps_its_schedule(server: ServerThread) -> None:
    model, alone = make("perceptron"), make("perceptron")
    optimizer, other = adamw(model), adamw(alone)
    schedule, other_schedule = ExponentialLR(optimizer, 0.8), ExponentialLR(other, 0.8)
    with connect(server, model, optimizer, every=2) as ps:
        for seed in range(8):
            report = train(ps, 1, seed)[0]
            assert report.eta == pytest.approx(0.01 * 0.8**seed)
            schedule.step()
    for seed in range(8):
        train_alone(alone, other, 1, seed)
        other_schedule.step()
    assert_alike(model, alone)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_skips_a_step_and_clipping_sees_unscaled_gradients(fused: bool, server: ServerThread) -> None:
    model, alone = make("perceptron"), make("perceptron")
    optimizer, other = adamw(model, fused=fused), adamw(alone, fused=fused)
    scaler, other_scaler = (torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2))

    def loss_at(one: nn.Module, seed: int) -> Tensor:
        return loss_of(one, seed) * (float("inf") if seed == 2 else 1.0)

    with connect(server, model, optimizer, every=3) as ps:
        for seed in range(6):
            loss = loss_at(model, seed)
            scaler.scale(loss).backward()
            ps.unscale_(scaler)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            report = ps.step(loss, samples=16, scaler=scaler)
            assert not report.skipped
    for seed in range(6):
        other.zero_grad()
        other_scaler.scale(loss_at(alone, seed)).backward()
        other_scaler.unscale_(other)
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        other_scaler.step(other)
        other_scaler.update()
    assert_alike(model, alone)
    assert scaler.get_scale() == other_scaler.get_scale() == 512
    assert ps.applied_steps == 2


def test_gradients_accumulate_until_the_step(server: ServerThread) -> None:
    model, alone = make("perceptron"), make("perceptron")
    other = adamw(alone)
    with connect(server, model, adamw(model), every=2) as ps:
        for seed in range(0, 8, 2):
            backward(model, seed)
            train(ps, 1, seed + 1)
    for seed in range(0, 8, 2):
        other.zero_grad()
        backward(alone, seed)
        backward(alone, seed + 1)
        other.step()
    assert_alike(model, alone)


def test_a_compiled_model_trains(server: ServerThread) -> None:
    model, alone = make("perceptron"), make("perceptron")
    compiled = torch.compile(model, backend="aot_eager")
    with connect(server, compiled, adamw(model), every=2) as ps:
        train(ps, 6)
    train_alone(alone, adamw(alone), 6)
    assert_alike(model, alone)


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_bfloat16_model_commits_what_it_moved(wire: Any, server: ServerThread) -> None:
    model = make("perceptron").bfloat16()

    def loss_now(seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        inputs, labels = torch.rand(16, 1, 8, 8).bfloat16(), torch.randint(0, 10, (16,))
        return nn.functional.cross_entropy(model(inputs), labels)

    with connect(server, model, adamw(model), every=4, delta_wire=wire, parameter_wire=wire) as ps:
        first = loss_now().item()
        for _ in range(40):
            loss = loss_now()
            loss.backward()
            ps.step(loss)
    assert loss_now().item() < 0.9 * first
    central = torch.from_numpy(server.server.central.parameters)
    assert torch.allclose(central, torch.cat([one.flatten() for one in model.parameters()]).float(), atol=0.02)


def test_a_script_that_runs_its_optimizer_itself_exchanges_when_it_wants(server: ServerThread) -> None:
    model, alone = make("batch-norm"), make("batch-norm")
    optimizer = adamw(model)
    with connect(server, model, optimizer) as ps:
        for count in (3, 1, 4):
            for seed in range(count):
                train_alone(model, optimizer, 1, seed)
            report = ps.exchange(samples=16 * count)
            assert report.applied
        backward(model)
        kept = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        ps.exchange()  # nothing moved, and gradients are the script's
        assert kept.keys() == {name for name, _ in model.named_parameters()}
        assert all(torch.equal(one.grad, kept[name]) for name, one in model.named_parameters())
        found = worker_status(server)
        assert (found["commits"], found["local_steps"], found["samples"]) == (4, 9, 128)
    other = adamw(alone)
    for count in (3, 1, 4):
        train_alone(alone, other, count)
    for (name, value), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert torch.allclose(value, expected, atol=1e-5), name


def test_the_end_of_the_block_commits_the_rest(server: ServerThread) -> None:
    model, alone = make("perceptron"), make("perceptron")
    with connect(server, model, adamw(model), every=4) as ps:
        train(ps, 6)
        assert ps.applied_steps == 1
    train_alone(alone, adamw(alone), 6)
    assert ps.applied_steps == 2
    assert_alike(model, alone)
    other = make("perceptron", seed=7)
    with ParameterServer(server.address, other, client_settings=IMPATIENT):
        assert_alike(other, alone)


def test_an_error_in_the_block_commits_no_rest(server: ServerThread) -> None:
    model = make("perceptron")
    ps = connect(server, model, adamw(model), every=4)

    def fail() -> None:
        with ps:
            train(ps, 6)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ps.applied_steps == 1


def test_replies_replace_parameters_and_nothing_else(server: ServerThread) -> None:
    first, second = make("perceptron", 1), make("perceptron", 2)
    optimizer = adamw(first)
    objects = list(first.parameters())
    with connect(server, first, optimizer, name="first", every=2) as ps:
        with connect(server, second, adamw(second), name="second") as other:
            snapshot = flat(first)
            train(ps, 1)
            train(other, 3, first=10)
            local = copy.deepcopy(optimizer.state_dict())
            moved = flat(first) - snapshot
            others = flat(second)
            report = ps.exchange()
            assert report.verdict is not None
            assert report.verdict.staleness == 3
        central = torch.from_numpy(server.server.central.parameters)
        assert torch.equal(central, flat(first))
        assert torch.allclose(central, others + moved, atol=1e-6)
        assert all(one is now for one, now in zip(objects, first.parameters(), strict=True))
        for number, state in optimizer.state_dict()["state"].items():
            assert all(torch.equal(state[key], local["state"][number][key]) for key in state)


@pytest.mark.parametrize(("wire", "missing"), [("float32", 1e-6), ("int4", 0.5 / 7), ("bfloat16", 1e-3)])
def test_what_a_wire_type_rounds_away_goes_with_a_later_commit(wire: Any, missing: float, server: ServerThread) -> None:
    """0.01 next to 1.0 is below half a step of an int4 block: alone, it would never arrive."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    with connect(server, model, SGD(model.parameters(), lr=1.0), delta_wire=wire) as ps:
        for _ in range(20):
            model.weight.grad = torch.tensor([[-1.0, -0.01]])
            ps.step()
    central = server.server.central.parameters
    assert central[0] == pytest.approx(20.0, rel=0.01)
    assert central[1] == pytest.approx(0.2, abs=missing)


def test_a_skipped_commit_keeps_what_was_rounded_away_before(server: ServerThread) -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    with connect(server, model, SGD(model.parameters(), lr=1.0), delta_wire="int4") as ps:
        for _ in range(20):
            for gradient in ([[-1.0, -0.01]], [[float("nan"), 0.0]]):
                model.weight.grad = torch.tensor(gradient)
                ps.step()
    assert server.server.central.parameters[1] == pytest.approx(0.2, abs=0.08)


def test_gradients_of_parameters_outside_the_model_do_not_add_up(server: ServerThread) -> None:
    model, temperature = nn.Linear(2, 1), nn.Parameter(torch.zeros(()))
    with connect(server, model, SGD([*model.parameters(), temperature], lr=1.0)) as ps:
        for _ in range(3):
            (model(torch.ones(1, 2)).sum() + temperature).backward()
            ps.step()
    assert float(temperature) == -3.0


def test_unscaling_twice_or_without_a_scaler_changes_nothing(server: ServerThread) -> None:
    model, scaler = nn.Linear(2, 1, bias=False), torch.amp.GradScaler("cpu", init_scale=8.0)
    before = model.weight.detach().clone()
    with connect(server, model, SGD(model.parameters(), lr=1.0)) as ps:
        ps.unscale_(None)
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        ps.unscale_(scaler)
        ps.unscale_(scaler)
        ps.step(scaler=scaler)
    assert torch.equal(model.weight.detach(), before - 1)


def test_a_restarted_server_with_settings_that_need_gradients_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with ServerThread(rule="downpour") as server:
        bind = server.address
        ps = connect(server, model, SGD(model.parameters(), lr=1.0))
        ps.join()
        trained(ps, model)
    with ServerThread(rule="dc-asgd", bind=bind):
        assert not trained(ps, model).applied
        with pytest.raises(UnsupportedOptimizerError, match="--rule dc-asgd"):
            trained(ps, model)
        ps.close()


def trained(ps: ParameterServer, model: nn.Module) -> StepReport:
    model(torch.ones(1, 2)).sum().backward()
    return ps.step()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rule": "gem", "direction": "rms"}, "--direction rms"),
        ({"rule": "gem", "clip_norm": 1.0}, "--clip-norm"),
        ({"rule": "gem", "weight_decay": 0.1}, "--weight-decay"),
        ({"rule": "dc-asgd"}, "--rule dc-asgd"),
        ({"rule": "agn"}, "rule agn makes 10 local steps itself"),
        ({"rule": "easgd", "rule_settings": "period=5"}, "every=5 takes their place"),
        ({"rule": "delayed-nesterov", "rule_settings": "local_steps=2"}, "set its local_steps"),
    ],
)
def test_a_run_that_needs_gradients_refuses_an_optimizer(settings: dict[str, Any], said: str) -> None:
    model = make("perceptron")
    with (
        ServerThread(**settings) as server,
        pytest.raises(UnsupportedOptimizerError, match=said),
        connect(server, model, adamw(model), every=4),
    ):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "easgd", "rule_settings": "period=1"},
        {"rule": "agn", "rule_settings": "local_steps=1"},
        {"rule": "delayed-nesterov"},
        {"rule": "fedbuff"},
        {"rule": "adaptive-staleness"},
        {"rule": "gem", "rule_settings": "momentum=0"},
    ],
    ids=lambda settings: settings["rule"],
)
def test_other_rules_accept_what_an_optimizer_moved(settings: dict[str, Any]) -> None:
    model = make("perceptron")
    with ServerThread(**settings) as server:
        before = loss_of(model).item()
        with connect(server, model, adamw(model, lr=0.003), every=4) as ps:
            for _ in range(80):
                ps.step(backward(model))
        assert loss_of(model).item() < 0.9 * before


@pytest.mark.parametrize(
    ("settings", "is_warned"),
    [
        ({"rule": "gem"}, True),
        ({"rule": "gem", "rule_settings": "momentum=0"}, False),
        ({"rule": "gem", "rule_settings": "momentum=0", "min_workers": 2}, True),
        ({"rule": "adaptive-staleness", "min_workers": 2}, False),
    ],
)
def test_a_rule_that_does_not_average_what_optimizers_moved_is_warned_of(
    settings: dict[str, Any], is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    with ServerThread(**settings) as server, connect(server, model, adamw(model)):
        pass
    fixes = [one.getMessage() for one in caplog.records if one.name == "gem_worker.local_optimizer"]
    assert [("--rule auto" in fix) for fix in fixes] == [True] * is_warned


def test_what_an_optimizer_moved_counts_by_its_staleness() -> None:
    models = [make("perceptron"), make("perceptron")]
    start = flat(models[0])
    with (
        ServerThread(rule="adaptive-staleness") as server,
        connect(server, models[0], adamw(models[0]), name="a") as first,
        connect(server, models[1], adamw(models[1]), name="b") as second,
    ):
        train(first, 1)  # staleness 0
        before = flat(models[0])
        expected = make("perceptron")
        train_alone(expected, adamw(expected), 1, first=1)
        train(second, 1, first=1)  # staleness 1
        assert torch.allclose(flat(models[1]), before + (flat(expected) - start) / 2, atol=1e-6)


def test_optimizers_that_cannot_work_are_refused_with_the_fix() -> None:
    model = make("perceptron")

    def refused(optimizer: Any, **settings: Any) -> ParameterServer:
        return ParameterServer("localhost:1", model, optimizer=optimizer, **settings)

    with pytest.raises(UnsupportedOptimizerError, match=r"LBFGS\.step needs a closure"):
        refused(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UnsupportedOptimizerError, match=r"create it from model\.parameters"):
        refused(adamw(make("perceptron")))
    with pytest.raises(TypeError, match=r"pass a torch\.optim\.Optimizer"):
        refused(model.parameters())
    with pytest.raises(ValueError, match="every=0"):
        refused(adamw(model), every=0)
    with pytest.raises(ValueError, match="pass optimizer="):
        refused(None, every=8)


def test_exchange_needs_an_optimizer(server: ServerThread) -> None:
    with (
        ParameterServer(server.address, make("perceptron"), client_settings=IMPATIENT) as ps,
        pytest.raises(RuntimeError, match="optimizer="),
    ):
        ps.exchange()


def test_parameters_that_are_not_finite_go_back_to_those_last_installed(server: ServerThread) -> None:
    model = make("batch-norm")
    optimizer = adamw(model)
    with connect(server, model, optimizer, every=2) as ps:
        train(ps, 2)
        before = copy.deepcopy(model.state_dict())
        train(ps, 1)
        (loss_of(model) * float("nan")).backward()
        report = ps.step()
        assert (report.skipped, report.applied) == (True, False)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert train(ps, 2)[-1].applied
        assert all(bool(one.isfinite().all()) for one in model.parameters())
        assert ps.skipped_steps == 1
    assert worker_status(server)["commits"] == 2


def test_a_hundred_in_a_row_are_divergence(server: ServerThread) -> None:
    model = make("perceptron")
    ps = connect(server, model, adamw(model))

    def overflow() -> None:
        with ps:
            while True:
                (loss_of(model) * float("inf")).backward()
                ps.step()

    with pytest.raises(DivergedError, match="smaller learning rate"):
        overflow()
    assert ps.skipped_steps == 100


def test_after_a_restart_of_the_server_one_delta_is_dropped(tmp_path: Path) -> None:
    model = make("perceptron")
    settings = {"rule": "downpour", "data_dir": tmp_path}
    with ServerThread(**settings) as server, connect(server, model, adamw(model), every=2) as ps:
        train(ps, 4)
        kept = copy.deepcopy(model.state_dict())
        train(ps, 1)
        server.stop()
        with ServerThread(**settings, bind=server.address, resume=True) as again:
            report = train(ps, 1)[0]
            assert not report.applied
            for name, value in model.state_dict().items():
                assert torch.equal(value, kept[name]), name
            assert train(ps, 2)[-1].applied
            assert again.server.central.clock == 4


def test_a_loop_resumes_from_its_optimizers_state_and_the_servers_parameters(tmp_path: Path) -> None:
    alone = make("perceptron")
    train_alone(alone, adamw(alone), 12)
    model = make("perceptron")
    optimizer = adamw(model)
    with ServerThread(rule="downpour", data_dir=tmp_path) as server, connect(server, model, optimizer, every=3) as ps:
        train(ps, 6)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed = make("perceptron", seed=7)
    optimizer = adamw(resumed)
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
    with (
        ServerThread(rule="downpour", data_dir=tmp_path, resume=True) as server,
        connect(server, resumed, optimizer, every=3) as ps,
    ):
        train(ps, 6, first=6)
    assert_alike(resumed, alone)


def test_an_epoch_has_an_hth_of_its_batches_in_commits() -> None:
    model = make("perceptron")
    with ServerThread(epochs=2) as server:
        with connect(server, model, adamw(model), every=4, steps_per_epoch=10) as ps:
            train(ps, 1000)
        found = worker_status(server)
        assert (found["commits"], found["local_steps"], found["samples"]) == (6, 24, 16 * 24)
        with Observer(server.address) as observer:
            intervals = observer.get_history()["intervals"]
        assert sum(one["local_steps"] for one in intervals) == 24


class Clock:
    """The server's clock, which advances with the training steps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_auto_gives_faster_workers_more_local_steps_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn the first worker makes 30 steps, the second 5 and the third one."""
    clock = Clock()
    monkeypatch.setattr("gem_server.server.monotonic", clock)
    models = [make("perceptron", seed) for seed in range(3)]
    with ServerThread(rule="downpour") as server, contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(connect(server, model, adamw(model, lr=1e-4), name=str(number), every="auto"))
            for number, model in enumerate(models)
        ]
        assert [ps.every for ps in workers] == [8, 8, 8]
        for _ in range(40):
            for ps, steps in zip(workers, (30, 5, 1), strict=True):
                for _ in range(steps):
                    clock.now += 0.01
                    train(ps, 1)
        fast, usual, slow = (ps.every for ps in workers)
        assert fast == 32
        assert 7 <= usual <= 9
        assert slow == 2


def test_auto_needs_a_budget_in_commits() -> None:
    model = make("perceptron")
    with (
        ServerThread(epochs=2) as server,
        pytest.raises(UnsupportedOptimizerError, match="--steps or --commits"),
        connect(server, model, adamw(model), every="auto", steps_per_epoch=10),
    ):
        pass


def test_at_the_end_the_model_holds_the_newest_parameters_without_local_steps() -> None:
    model, other = make("perceptron", 1), make("perceptron", 2)
    with (
        ServerThread(rule="downpour", commits=2) as server,
        connect(server, model, adamw(model), every=2) as ps,
        connect(server, other, adamw(other), name="o") as end,
    ):
        train(ps, 3)
        train(end, 1)
        kept = copy.deepcopy(other.state_dict())
        (report,) = train(ps, 1)
        assert not report.applied
        for _ in range(2):
            for name, value in model.state_dict().items():
                assert torch.equal(value, kept[name]), name
            with pytest.raises(RunFinishedError):
                train(ps, 1)


def test_no_warning_says_that_the_optimizer_is_without_effect(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    with caplog.at_level(logging.WARNING), connect(server, model, adamw(model)) as ps:
        train(ps, 2)
    assert not caplog.records


def test_a_script_that_steps_its_optimizer_and_never_exchanges_is_warned_once(
    server: ServerThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem_worker.local_optimizer.LONELY_STEPS", 4)
    model = make("perceptron")
    optimizer = adamw(model)
    with caplog.at_level(logging.WARNING), connect(server, model, optimizer) as ps:
        train_alone(model, optimizer, 3)
        ps.exchange()
        train_alone(model, optimizer, 3)
        assert not caplog.records
        train_alone(model, optimizer, 5)
    (warning,) = (one.getMessage() for one in caplog.records)
    assert warning.startswith("4 steps of AdamW since the last exchange: this worker trains alone. Call ps.step(loss)")
