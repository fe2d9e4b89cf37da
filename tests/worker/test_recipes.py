"""Scripts with an optimizer, under a server that lets the first worker decide: what they commit and what they get."""

import contextlib
import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import (
    ClientSettings,
    DivergedError,
    ParameterServer,
    RunFinishedError,
    ServerRefusedError,
    StepReport,
    UnsupportedOptimizerError,
)
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from gem_core.recipe import RecipeKind
from tests.worker.loops import loss_of, worker_status
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

IMPATIENT = ClientSettings(connect_timeout=20)


def serve(**settings: Any) -> ServerThread:
    return ServerThread(**({"rule": "auto"} | settings))


def connect(server: ServerThread, model: nn.Module, optimizer: Optimizer | None, **settings: Any) -> ParameterServer:
    more = {"name": "w"} | settings
    return ParameterServer(server.address, model, optimizer=optimizer, client_settings=IMPATIENT, **more)


def adamw(model: nn.Module, **settings: Any) -> AdamW:
    return AdamW(model.parameters(), **({"lr": 0.01, "weight_decay": 0.1} | settings))


def backward(model: nn.Module, seed: int = 0) -> Tensor:
    loss = loss_of(model, seed)
    loss.backward()
    return loss


def train(ps: ParameterServer, steps: int, first: int = 0) -> list[StepReport]:
    return [ps.step(backward(ps.model, seed), samples=16) for seed in range(first, first + steps)]


def parameters_of(model: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in model.parameters()]


def train_as_examples_do(model: nn.Module, optimizer: Any) -> None:
    for seed in range(3):
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()


@pytest.mark.parametrize("kind", [AdamW, Adadelta], ids=["translated", "own steps"])
def test_a_function_that_takes_an_optimizer_takes_the_parameter_server_in_its_place(kind: type[Optimizer]) -> None:
    models = [make("perceptron") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    results = []
    for model in models:
        optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        with serve() as server, connect(server, model, optimizer) as ps:
            if model is models[0]:
                train_as_examples_do(model, ps)
            else:
                backward(model, 7)  # a gradient that the function's first zero_grad would have dropped
                ps.zero_grad()
                train(ps, 3)
            results.append(parameters_of(model))
            assert ps.applied_steps == 3
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("is_shared", [False, True], ids=["stream", "shared memory"])
def test_a_commit_is_the_translated_delta_and_takes_each_groups_decay(
    is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    place = {"shared_memory_socket": tmp_path / "memory"} if is_shared else {}
    model = make("perceptron")
    matrices, vectors = ([one for one in model.parameters() if (one.ndim > 1) is wanted] for wanted in (True, False))
    optimizer = AdamW([{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "lr": 0.04}], lr=0.02)
    with serve(**place) as server, connect(server, model, optimizer) as ps:
        before = parameters_of(model)
        backward(model)
        signs = [one.grad.sign() for one in model.parameters() if one.grad is not None]
        report = ps.step()
        assert (report.applied, report.eta, ps.eta) == (True, 0.02, 0.02)
        for old, sign, new in zip(before, signs, model.parameters(), strict=True):
            rate, decay = (0.02, 0.02 * 0.5) if new.ndim > 1 else (0.04, 0.04 * 0.01)
            # The first step of a direction is 1, and of gem the whole delta.
            moved = torch.where(sign == 0, 0.0, rate / 3 * sign)
            torch.testing.assert_close(new.detach(), (1 - decay) * old - moved, rtol=1e-4, atol=1e-5)
            assert new.grad is not None
            assert not new.grad.any()
        assert ps.recipe_text == "AdamW: RMS-scaled gradients at a third of its rate, under gem (docs/rules.md)"
        assert ps.run_settings.rule == "gem"
        assert ps.progress == 1


def test_groups_keep_their_rates_where_the_first_ones_is_next_to_nothing() -> None:
    model = make("perceptron")
    first, *others = model.parameters()
    optimizer = SGD([{"params": [first], "lr": 1e-42}, {"params": others}], lr=0.1)
    with serve() as server, connect(server, model, optimizer) as ps:
        before = parameters_of(model)
        backward(model)
        gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        assert ps.step().applied
        for old, gradient, new in zip(before[1:], gradients[1:], parameters_of(model)[1:], strict=True):
            torch.testing.assert_close(new, old - 0.1 / 3 * gradient)


@pytest.mark.parametrize("kind", [AdamW, Adadelta], ids=["translated", "own steps"])
def test_a_learning_rate_below_0_is_refused_with_the_fix(kind: type[Optimizer]) -> None:
    model = make("perceptron")
    optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 2)
    fix = pytest.raises(UnsupportedOptimizerError, match=r"learning rate is -0\.005: .* max\(0, ")
    with serve() as server, fix, connect(server, model, optimizer, scheduler=schedule) as ps:
        for _ in range(4):
            train(ps, 1)
            schedule.step()
    assert ps.applied_steps == 3


def test_a_function_that_zeroes_before_it_steps_gets_the_worker_in_place_of_its_optimizer() -> None:
    models = [make("perceptron") for _ in range(2)]
    for model, zeroes in zip(models, (True, False), strict=True):
        with serve() as server, connect(server, model, adamw(model)) as ps:
            for _ in range(3):
                if zeroes:
                    ps.zero_grad()
                    assert all(one.grad is None for one in model.parameters())
                backward(model)
                ps.step()
    for one, other in zip(*map(parameters_of, models), strict=True):
        assert torch.equal(one, other)


OPTIMIZERS: dict[str, Any] = {
    "adamw": adamw,
    "sgd": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "muon": lambda model: Muon([one for one in model.parameters() if one.ndim == 2], lr=0.02),
    "adadelta": lambda model: Adadelta(model.parameters(), lr=1.0),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_trains_with_one_worker_and_with_three(kind: str, workers: int) -> None:
    with serve() as server, contextlib.ExitStack() as stack:
        models = [make("perceptron", number) for number in range(workers)]
        joined = [
            stack.enter_context(connect(server, model, OPTIMIZERS[kind](model), name=str(number)))
            for number, model in enumerate(models)
        ]
        before = loss_of(models[0]).item()
        for seed in range(60):
            for ps in joined:
                assert train(ps, 1, seed % 4)[0].applied
        assert loss_of(models[0]).item() < 0.8 * before
        assert all(ps.run_settings.recipe == joined[0].run_settings.recipe is not None for ps in joined)
        assert joined[0].progress == pytest.approx(60, abs=1)


@pytest.mark.parametrize("kind", ["perceptron", "batch-norm", "channels-last", "mixed-types", "bfloat16"])
def test_models_of_every_kind_train_on_a_translated_optimizer(kind: str) -> None:
    model = make(kind)
    with serve() as server, connect(server, model, adamw(model, lr=0.02)) as ps:
        before = loss_of(model).item()
        for _ in range(60):
            ps.step(backward(model))
        assert loss_of(model).item() < 0.7 * before
        for name, value in model.named_buffers():
            assert value.isfinite().all(), name


def test_one_worker_with_any_other_optimizer_is_that_optimizer() -> None:
    model, alone = make("batch-norm"), make("batch-norm")
    with serve() as server, connect(server, model, Adadelta(model.parameters())) as ps:
        train(ps, 12)
        assert ps.run_settings.recipe is not None
        assert ps.run_settings.recipe.kind is RecipeKind.MOVEMENT
        assert ps.run_settings.rule_settings["signed_gap"] == 1
        assert ps.recipe_text.startswith("Adadelta: its own steps are committed, under gem with a signed gap")
    other = Adadelta(alone.parameters())
    for seed in range(12):
        other.zero_grad()
        backward(alone, seed)
        other.step()
    for (name, value), expected in zip(model.state_dict().items(), alone.state_dict().values(), strict=True):
        assert torch.allclose(value.double(), expected.double(), atol=1e-5), name


def test_several_steps_of_the_optimizer_between_commits_are_its_movement() -> None:
    model = make("perceptron")
    with serve() as server, connect(server, model, adamw(model), every=4) as ps:
        reports = train(ps, 8)
        assert [one.local for one in reports] == [True, True, True, False] * 2
        assert ps.recipe_text.startswith("AdamW with every=4: its own steps are committed")
        assert worker_status(server)["local_steps"] == 8


def test_another_recipe_is_refused_with_the_difference() -> None:
    first, second = make("perceptron"), make("perceptron")
    with serve() as server, connect(server, first, adamw(first)) as ps:
        train(ps, 1)
        with (
            pytest.raises(ServerRefusedError, match=r"lr is 0\.02, the run has 0\.01"),
            connect(server, second, adamw(second, lr=0.02), name="other"),
        ):
            pass
        with pytest.raises(ServerRefusedError, match="has no optimizer"), connect(server, second, None, name="none"):
            pass


def test_a_server_that_names_its_rule_wins_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model, alone = make("perceptron"), make("perceptron")
    with caplog.at_level(logging.INFO), serve(rule="downpour") as server, connect(server, model, adamw(model)) as ps:
        train(ps, 6)
        text = "AdamW: its own steps are committed, under downpour, which the server names (docs/rules.md)"
        assert ps.recipe_text == text
    assert text in caplog.messages
    other = adamw(alone)
    for seed in range(6):
        other.zero_grad()
        backward(alone, seed)
        other.step()
    for value, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_a_worker_without_an_optimizer_gets_the_direction_auto() -> None:
    model = make("perceptron")
    with serve() as server, connect(server, model, None) as ps:
        assert (ps.run_settings.direction, ps.run_settings.recipe, ps.recipe_text) == ("auto", None, "")
        assert ps.eta == 0.002
        before = loss_of(model).item()
        for _ in range(100):
            ps.step(backward(model))
        assert loss_of(model).item() < 0.8 * before


def test_the_scripts_clipping_and_accumulation_come_before_the_translation() -> None:
    model, other = make("perceptron"), make("perceptron")
    with serve() as server, connect(server, model, SGD(model.parameters(), lr=3.0)) as ps:
        before = parameters_of(model)
        backward(model, 1)
        backward(model, 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        ps.step()
        backward(other, 1)
        backward(other, 2)
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        for old, new, reference in zip(before, model.parameters(), other.parameters(), strict=True):
            assert reference.grad is not None
            torch.testing.assert_close(old - new.detach(), reference.grad, rtol=1e-4, atol=1e-6)


def test_a_loss_scaler_leaves_out_steps_with_an_overflow() -> None:
    model = make("batch-norm")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with serve() as server, connect(server, model, adamw(model)) as ps:
        for seed in range(6):
            loss = loss_of(model, seed) * (float("inf") if seed == 2 else 1.0)
            scaler.scale(loss).backward()
            if seed % 2:
                ps.unscale_(scaler)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert ps.step(loss, scaler=scaler).skipped is (seed == 2)
        assert (ps.applied_steps, ps.skipped_steps, scaler.get_scale()) == (5, 1, 512.0)
        assert all(bool(one.isfinite().all()) for one in model.state_dict().values())


def test_a_hundred_gradients_in_a_row_that_are_not_finite_are_divergence() -> None:
    model = make("perceptron")

    def overflow(ps: ParameterServer) -> None:
        with ps:
            while True:
                (loss_of(model) * float("inf")).backward()
                ps.step()

    with serve() as server, pytest.raises(DivergedError, match="smaller learning rate"):
        overflow(connect(server, model, adamw(model)))


def test_a_script_that_zeroes_gradients_in_every_way_trains_the_same() -> None:
    found = []
    for zero in (lambda _: None, lambda one: one.zero_grad(), lambda one: one.zero_grad(set_to_none=False)):
        model = make("perceptron")
        optimizer = adamw(model)
        with serve() as server, connect(server, model, optimizer) as ps:
            for seed in range(4):
                zero(optimizer)
                ps.step(backward(model, seed))
        found.append(parameters_of(model))
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def test_a_loop_that_runs_the_optimizer_itself_exchanges_after_each_step() -> None:
    """The loops of Trainers do so: they zero the gradients, and move the schedule, before the exchange."""
    model = make("perceptron")
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    with serve() as server, connect(server, model, optimizer, scheduler=scheduler) as ps:
        for seed in range(4):
            before = parameters_of(model)
            loss = backward(model, seed)
            optimizer.step()
            assert all(map(torch.equal, before, parameters_of(model))), "the server moves the parameters"
            scheduler.step()
            optimizer.zero_grad()
            report = ps.exchange(loss, samples=16)
            assert (report.applied, report.eta) == (True, 0.01 * 0.5**seed), "the rate is that of the step"
            assert not any(map(torch.equal, before, parameters_of(model)))
        assert optimizer.param_groups[0]["lr"] == 0.01 * 0.5**4
        assert ps.exchange().local, "there is nothing to commit"
        backward(model, 4)
        optimizer.step()
        assert commits_of(server) == 4
        assert worker_status(server)["samples"] == 64
    assert commits_of(server) == 5, "the end of the block commits the last step"


def commits_of(server: ServerThread) -> int:
    return server.server.central.clock - 1


def test_the_schedule_of_workers_of_different_speed_is_the_runs() -> None:
    total = 12
    with serve() as server, contextlib.ExitStack() as stack:
        workers = []
        for number in range(2):
            model = make("perceptron", number)
            optimizer = adamw(model)
            scheduler = CosineAnnealingLR(optimizer, total)
            ps = stack.enter_context(connect(server, model, optimizer, scheduler=scheduler, name=str(number)))
            workers.append((ps, scheduler))
        for turn in range(16):  # the second makes a third of the first one's steps
            ps, scheduler = workers[turn % 4 == 3]
            report = train(ps, 1, turn)[0]
            scheduler.step()
            assert report.eta <= 0.01
            assert scheduler.last_epoch == round(ps.progress) == round((turn + 1) / 2)
        assert [scheduler.last_epoch for _, scheduler in workers] == [8, 8]


def test_a_run_resumes_with_the_optimizers_state_and_its_schedule_bit_by_bit(tmp_path: Path) -> None:
    whole = make("batch-norm")
    optimizer = adamw(whole)
    scheduler = CosineAnnealingLR(optimizer, 12)
    with serve(data_dir=tmp_path / "whole") as server, connect(server, whole, optimizer, scheduler=scheduler) as ps:
        for seed in range(6):
            train(ps, 1, seed)
            scheduler.step()
        saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
        server.stop()
    resumed = make("batch-norm", seed=7)
    optimizer = adamw(resumed)
    scheduler = CosineAnnealingLR(optimizer, 12)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    with (
        serve(data_dir=tmp_path / "whole", resume=True) as server,
        connect(server, resumed, optimizer, scheduler=scheduler, name="w") as ps,
    ):
        assert ps.progress == 6
        for name, value in whole.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), name
        for seed in range(6, 12):
            train(ps, 1, seed)
            scheduler.step()
            assert scheduler.last_epoch == seed + 1
        assert {int(state["step"]) for state in optimizer.state.values()} == {12}


@pytest.mark.parametrize("kind", [AdamW, Adadelta], ids=["translated", "own steps"])
@pytest.mark.parametrize("who", ["scheduler", "passed scheduler", "by hand"])
def test_a_scheduler_that_was_not_passed_is_warned_of_once_it_changes_the_rate(
    who: str, kind: type[Optimizer], caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    scheduler = None if who == "by hand" else LambdaLR(optimizer, lambda step: 1 / (1 + step // 2))
    passed = {"scheduler": scheduler} if who == "passed scheduler" else {}
    warned = []
    with serve() as server, connect(server, model, optimizer, **passed) as ps:
        for step in range(6):
            train(ps, 1, first=step)
            if scheduler is not None:
                scheduler.step()
            else:
                optimizer.param_groups[0]["lr"] = 0.01 / (1 + ps.progress)
            warned.append(sum("own steps: workers of different speed" in line for line in caplog.messages))
    assert warned == ([0, 0, 1, 1, 1, 1] if who == "scheduler" else [0] * 6)


class Headed(nn.Module):
    """A model with a second head, which no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = make("perceptron")
        self.unused = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Any:
        return self.body(inputs)


@pytest.mark.parametrize(
    ("create", "is_shrunk"),
    [
        (lambda model: adamw(model), True),
        (lambda model: AdamW([{"params": one.parameters()} for one in model.children()], weight_decay=0.1), False),
        (lambda model: Adam(model.parameters(), lr=0.01, weight_decay=0.1), False),
        (lambda model: SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1), False),
    ],
    ids=["AdamW in one group", "AdamW in groups", "Adam", "SGD"],
)
def test_parameters_that_no_backward_pass_reaches_do_not_decay_or_are_warned_of(
    create: Any, is_shrunk: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = Headed()
    before, of_body = parameters_of(model.unused), parameters_of(model.body)
    optimizer = create(model)
    with serve() as server, connect(server, model, optimizer) as ps:
        for seed in range(25):
            loss = backward(model, seed)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            ps.step(loss)
    is_kept = all(torch.equal(one, other) for one, other in zip(parameters_of(model.unused), before, strict=True))
    assert is_kept is not is_shrunk
    assert not any(torch.equal(one, other) for one, other in zip(parameters_of(model.body), of_body, strict=True))
    assert any("unused.weight, unused.bias. Freeze them" in line for line in caplog.messages) is is_shrunk


def test_a_schedule_that_a_script_restored_goes_on_from_there_on_an_empty_server() -> None:
    model = make("perceptron")
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    with serve() as server, connect(server, model, optimizer, scheduler=scheduler) as ps:
        scheduler.load_state_dict(scheduler.state_dict() | {"last_epoch": 50})
        for _ in range(3):
            train(ps, 2)
            scheduler.step()
    assert (scheduler.last_epoch, scheduler.get_last_lr()) == (53, [0.01 / 54])


@pytest.mark.parametrize("wire", ["bfloat16", "int4", "sparse"])
def test_every_wire_type_carries_translated_deltas(wire: Any) -> None:
    model = make("perceptron")
    with serve() as server, connect(server, model, adamw(model, lr=0.03), delta_wire=wire) as ps:
        before = loss_of(model).item()
        for _ in range(60):
            ps.step(backward(model))
        assert loss_of(model).item() < 0.7 * before


def test_the_end_of_the_run_is_that_of_every_worker() -> None:
    model = make("perceptron")
    with serve(commits=3) as server, connect(server, model, adamw(model)) as ps:
        train(ps, 3)
        assert ps.finished
        kept = parameters_of(model)
        with pytest.raises(RunFinishedError):
            train(ps, 1)
        assert all(map(torch.equal, kept, parameters_of(model)))


def test_after_the_block_the_optimizer_steps_itself() -> None:
    model = make("perceptron")
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    own = optimizer.step
    with serve() as server, connect(server, model, optimizer, scheduler=scheduler) as ps:
        assert optimizer.step != own
        train(ps, 2)
    assert optimizer.step == own
    before = parameters_of(model)
    backward(model)
    optimizer.step()
    assert not any(map(torch.equal, before, parameters_of(model)))
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


@pytest.mark.parametrize(("level", "lines"), [(logging.WARNING, 1), (logging.ERROR, 0)])
def test_without_logging_a_script_prints_one_line_on_its_optimizer_unless_warnings_are_off(
    level: int, lines: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = make("perceptron")
    with caplog.at_level(level), serve() as server, connect(server, model, adamw(model)) as ps:
        printed = capsys.readouterr().err.splitlines()
        assert printed.count(ps.recipe_text) == lines


def test_changes_that_a_script_makes_to_the_weights_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = make("perceptron")
    with serve() as server, connect(server, model, adamw(model)) as ps:
        for seed in range(3):
            train(ps, 1, seed)
            with torch.no_grad():
                model[1].weight.clamp_(-0.01, 0.01)
        train(ps, 1)
    (warning,) = [one for one in caplog.messages if "changed by the script" in one]
    assert "--rule adaptive-staleness" in warning


def test_parameters_that_no_group_has_are_named_and_stay(caplog: pytest.LogCaptureFixture) -> None:
    model = make("perceptron")
    with serve() as server, connect(server, model, AdamW([model[1].weight, model[1].bias], lr=0.01)) as ps:
        before = model[3].weight.detach().clone()
        train(ps, 3)
        assert torch.equal(model[3].weight.detach(), before)
    assert any("no worker trains the others: 3.weight, 3.bias" in one for one in caplog.messages)
