"""`--rule auto`: the first worker decides about the rule, by its recipe or its directions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gemps.limits import RECIPE_BYTES
from gemps.v1 import operations_pb2, run_pb2

from gem_core.recipe import MAX_GROUP_SETTINGS, MAX_GROUPS
from tests.server_settings import server_settings
from tests.wire.conftest import Serve
from tests.wire.model import SMALL
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import announced

COUNT = sum(tensor.kind == "parameter" for tensor in SMALL.tensors)
ALL = announced("rms", "auto")
MOVEMENT = {"momentum": 0, "kappa": 2, "pi_max": 1, "signed_gap": 1}
CHECKPOINT = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT)


def recipe(kind: str = "rms", optimizer: str = "AdamW", *groups: dict[str, float], **changes: Any) -> run_pb2.Recipe:
    """A worker's recipe for SMALL, with all tensors in the first group."""
    settings = groups or ({"lr": 0.001, "beta2": 0.99},)
    fields: dict[str, Any] = {
        "kind": kind,
        "optimizer": optimizer,
        "groups": [run_pb2.RecipeGroup(settings=group) for group in settings],
        "group_of_parameter": [0] * COUNT,
    }
    return run_pb2.Recipe(**(fields | changes))


async def auto(serve: Serve, **settings: Any) -> Serving:
    return await serve(rule="auto", **settings)


async def rule_of(serving: Serving) -> str:
    return (await serving.status()).rule


async def test_the_first_workers_recipe_becomes_the_runs(serve: Serve) -> None:
    serving = await auto(serve)
    assert (await serving.status()).settings.rule == "auto"
    assert await rule_of(serving) == "rule auto: the first worker decides"
    own = recipe("rms", "AdamW", {"lr": 0.001}, {"lr": 0.001, "weight_decay": 0.1})
    answer = await serving.worker().join(recipe=own)
    settings = answer.settings
    assert settings.recipe == own
    assert (settings.rule, settings.direction) == ("gem", "")
    assert (settings.eta, answer.next_eta) == (0.001, 0.001)
    assert {name: settings.rule_settings[name] for name in MOVEMENT} == {
        "momentum": 0.9,
        "kappa": 1,
        "pi_max": 5,
        "signed_gap": 0,
    }
    assert (await serving.worker().join(recipe=own)).settings == settings
    status = await serving.status()
    assert (
        status.rule == "rule gem by the first worker's AdamW (RMS-scaled gradients at its rate, lr 0.001 and 2 groups)"
    )
    assert status.settings.recipe.groups == own.groups
    assert not status.settings.recipe.group_of_parameter


async def test_eta_is_open_until_the_first_worker_has_decided_it_or_the_server_was_given_it(serve: Serve) -> None:
    serving = await auto(serve)
    assert (await serving.status()).settings.eta == 0
    await serving.worker().join(recipe=recipe())
    assert (await serving.status()).settings.eta == 0.001
    given = await auto(serve, eta=0.01)
    assert (await given.status()).settings.eta == 0.01


async def test_a_named_rule_tells_no_eta_where_workers_commit_what_their_optimizers_moved(serve: Serve) -> None:
    serving = await serve(rule="adaptive-staleness")
    assert await rule_of(serving) == "rule adaptive-staleness, eta 0.05"
    worker = serving.worker()
    assert (await worker.join(recipe=recipe())).settings.eta == 0.05
    assert await rule_of(serving) == "rule adaptive-staleness, of what workers' optimizers moved"
    assert (await serving.status()).settings.eta == 0
    await worker.leave()
    await serving.worker().join()
    assert await rule_of(serving) == "rule adaptive-staleness, eta 0.05"


@pytest.mark.parametrize(("kind", "words"), [("gradient", "gradients"), ("rms", "RMS-scaled gradients")])
async def test_gem_keeps_its_numbers_for_translated_optimizers(serve: Serve, kind: str, words: str) -> None:
    serving = await auto(serve)
    settings = (await serving.worker().join(recipe=recipe(kind, "SGD"))).settings
    assert settings.rule_settings["momentum"] == 0.9
    assert await rule_of(serving) == f"rule gem by the first worker's SGD ({words} at its rate, lr 0.001)"


async def test_gem_has_no_momentum_where_workers_take_it_before_the_direction(serve: Serve) -> None:
    serving = await auto(serve)
    own = recipe("spectral", "AdamW", {"lr": 0.001, "beta1": 0.9, "beta2": 0.99})
    settings = (await serving.worker().join(recipe=own)).settings
    assert {name: settings.rule_settings[name] for name in MOVEMENT} == MOVEMENT
    assert "orthogonalised, RMS-scaled momentum at its rate" in await rule_of(serving)


async def test_movement_of_an_optimizer_gets_its_own_numbers_before_the_first_commit(serve: Serve) -> None:
    serving = await auto(serve)
    own = recipe("movement", "Adadelta", {"lr": 1.0})
    settings = (await serving.worker().join(recipe=own)).settings
    assert {name: settings.rule_settings[name] for name in MOVEMENT} == MOVEMENT
    assert {name: serving.server.rule.settings[name] for name in MOVEMENT} == MOVEMENT


async def test_a_worker_without_a_recipe_gets_direction_auto_and_its_eta(serve: Serve) -> None:
    serving = await auto(serve)
    answer = await serving.worker().join(features=ALL)
    assert not answer.settings.HasField("recipe")
    assert (answer.settings.rule, answer.settings.direction) == ("gem", "auto")
    assert (answer.settings.eta, answer.next_eta) == (0.002, 0.002)
    assert {name: answer.settings.rule_settings[name] for name in MOVEMENT} == MOVEMENT
    assert await rule_of(serving) == "rule auto: gem, direction auto, eta 0.002"


async def test_a_worker_of_another_language_gets_plain_gem(serve: Serve) -> None:
    serving = await auto(serve)
    (worker,) = await serving.training()
    settings = worker.membership.settings
    assert not settings.HasField("recipe")
    assert (settings.rule, settings.direction, settings.eta) == ("gem", "", 0.05)
    assert worker.membership.next_eta == 0.05
    outcome = await worker.commit(worker.delta(1))
    assert outcome.verdict.next_eta == 0.05
    assert (await serving.worker().join(features=ALL)).settings == settings


@pytest.mark.parametrize(
    ("given", "direction", "eta"),
    [
        ({"direction": "rms"}, "rms", 0.001),
        ({"direction": "gradient"}, "", 0.05),
        ({"eta": 0.01}, "", 0.01),
        ({"eta": 0.01, "direction": "auto"}, "auto", 0.01),
        ({"eta_schedule": "step:1:0.5", "rule_settings": "kappa=3"}, "auto", 0.002),
    ],
)
async def test_options_of_the_server_win_over_what_follows_from_a_worker_without_a_recipe(
    serve: Serve, given: dict[str, Any], direction: str, eta: float
) -> None:
    serving = await auto(serve, **given)
    settings = (await serving.worker().join(features=ALL)).settings
    assert (settings.direction, settings.eta) == (direction, eta)
    usual = MOVEMENT if direction == "auto" else {"momentum": 0.9, "kappa": 1, "pi_max": 5}
    chosen = usual | ({"kappa": 3} if "rule_settings" in given else {})
    assert {name: settings.rule_settings[name] for name in chosen} == chosen


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"eta": 0.05}, "started with --eta, and"),
        ({"eta_schedule": "constant"}, "--eta-schedule"),
        ({"weight_decay": 0.0}, "--weight-decay"),
        ({"clip_norm": 1.0}, "--clip-norm"),
        ({"direction": "gradient"}, "--direction"),
        ({"local_steps": 1}, "--local-steps"),
        ({"rule_settings": "momentum=0.9"}, "--rule-settings"),
        ({"eta": 0.01, "local_steps": 2, "direction": "rms"}, "--eta, --direction and --local-steps"),
    ],
)
async def test_a_recipe_is_refused_where_the_server_was_given_what_it_decides(
    serve: Serve, given: dict[str, Any], named: str
) -> None:
    serving = await auto(serve, **given)
    refusal = await refused(serving.worker().join(recipe=recipe(), features=ALL), "RECIPE")
    assert named in refusal.message
    assert "start the server without, or name its rule, for example --rule gem" in refusal.message
    assert not (await serving.status()).workers


async def test_settings_that_do_not_concern_commits_leave_room_for_a_recipe(serve: Serve) -> None:
    serving = await auto(serve, seed=3, steps=5, min_workers=2, rule_settings="")
    assert (await serving.worker().join(recipe=recipe())).settings.HasField("recipe")


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (
            recipe("rms", "AdamW", {"lr": 0.001}),
            recipe("rms", "AdamW", {"lr": 0.002}),
            "group 0: lr is 0.002, the run has",
        ),
        (recipe(), recipe(optimizer="Adam"), "the optimizer is Adam, the run has AdamW"),
        (recipe(), None, "the worker has no optimizer, and the run has AdamW"),
        (None, recipe(), "the worker has an optimizer, and the run was begun without one"),
    ],
)
async def test_another_recipe_than_the_runs_is_refused_with_the_difference(
    serve: Serve, first: run_pb2.Recipe | None, second: run_pb2.Recipe | None, difference: str
) -> None:
    serving = await auto(serve)
    await serving.worker().join(recipe=first)
    refusal = await refused(serving.worker().join(recipe=second), "RECIPE")
    assert refusal.message.startswith(difference)
    assert "the same optimizer" in refusal.message
    assert [worker.name for worker in (await serving.status()).workers] == ["worker-0"]


async def test_a_worker_that_does_not_know_the_runs_direction_is_refused_with_the_fix(serve: Serve) -> None:
    serving = await auto(serve)
    await serving.worker().join(features=ALL)
    refusal = await refused(serving.worker().join(features=announced("rms")), "FEATURE")
    assert refusal.metadata["missing"] == "direction-auto"
    assert "or start the server without --direction auto" in refusal.message


async def test_without_parameters_the_next_worker_decides_anew_once_all_have_left(serve: Serve) -> None:
    serving = await auto(serve)
    first, second = serving.worker(), serving.worker()
    own, other = recipe("movement", "LAMB", {"lr": 0.01}), recipe()
    await first.join(recipe=own)
    await second.join(recipe=own)
    await first.leave()
    await refused(serving.worker().join(recipe=other), "RECIPE")
    await second.leave()
    settings = (await serving.worker().join(recipe=other)).settings
    assert settings.recipe == other
    assert (settings.eta, settings.rule_settings["momentum"]) == (0.001, 0.9)


async def test_a_first_worker_that_comes_again_with_another_optimizer_decides_anew(serve: Serve) -> None:
    serving = await auto(serve)
    worker = serving.worker(name="only")
    await worker.join(recipe=recipe())
    settings = (await serving.worker(name="only").join(features=ALL)).settings
    assert (settings.direction, settings.HasField("recipe")) == ("auto", False)


async def test_a_refused_process_of_the_first_workers_name_leaves_the_decision_to_the_one_that_trains(
    serve: Serve,
) -> None:
    serving = await auto(serve)
    older, newer = (serving.worker(name="only", recipe=recipe()) for _ in range(2))
    await older.join()
    await newer.join()
    await refused(older.join(recipe=recipe("movement", "LAMB")), "NEWER_SESSION")
    status = await serving.status()
    assert (status.settings.recipe.kind, status.settings.rule_settings["momentum"]) == ("rms", 0.9)
    await newer.initialize()
    await newer.pull()
    await newer.commit(newer.delta(1), eta=0.01)
    assert (await serving.worker(recipe=recipe()).join()).settings.recipe == recipe()


async def test_with_parameters_the_decision_stays_though_all_have_left(serve: Serve) -> None:
    serving = await auto(serve)
    worker = await serving.joined(recipe=recipe())
    await worker.initialize()
    await worker.leave()
    await refused(serving.worker().join(recipe=recipe(optimizer="Adam")), "RECIPE")
    assert (await serving.worker().join(recipe=recipe())).settings.recipe == recipe()


async def test_a_refused_first_join_decides_nothing_for_the_next_one(serve: Serve) -> None:
    serving = await auto(serve, memory_limit=1)
    await refused(serving.worker().join(recipe=recipe()), "MEMORY")
    await refused(serving.worker().join(recipe=recipe(optimizer="Adam")), "MEMORY")


async def test_a_server_whose_rule_is_named_binds_no_recipe(serve: Serve) -> None:
    serving = await serve(rule="gem", eta=0.01)
    settings = (await serving.worker().join(recipe=recipe())).settings
    assert not settings.HasField("recipe")
    assert (settings.rule, settings.eta) == ("gem", 0.01)
    other = (await serving.worker().join(recipe=recipe(optimizer="Adam"))).settings
    assert other == (await serving.worker().join()).settings == settings
    assert await rule_of(serving) == "rule gem, eta 0.01"


def _many(groups: int, settings: int) -> run_pb2.Recipe:
    one = {f"setting-{number}": 1.0 for number in range(settings)}
    return recipe("rms", "AdamW", *[one] * groups)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (recipe(kind="magic"), "magic"),
        (recipe(optimizer=""), "optimizer's name"),
        (recipe(optimizer="Adam\x1b[2J"), "optimizer's name"),
        (recipe("rms", "AdamW", {"lr": float("nan")}), "finite"),
        (recipe("rms", "AdamW", {"lr": float("inf")}), "finite"),
        (recipe("rms", "AdamW", {"x" * 65: 1.0}), "64"),
        (recipe(groups=[]), "0 parameter groups"),
        (recipe(group_of_parameter=[1] * COUNT), "is in group 1: name one of the recipe's 1"),
        (recipe(group_of_parameter=[0] * (COUNT + 1)), "PARAMETER tensors"),
        (recipe(group_of_parameter=[]), "PARAMETER tensors"),
        (recipe(group_of_parameter=[0] * RECIPE_BYTES), f"at most {RECIPE_BYTES}"),
        (_many(MAX_GROUPS + 1, 1), f"at most {MAX_GROUPS} groups"),
        (_many(1, MAX_GROUP_SETTINGS + 1), f"at most {MAX_GROUP_SETTINGS}"),
    ],
)
@pytest.mark.parametrize("rule", ["auto", "gem"])
async def test_a_recipe_that_is_not_legal_is_malformed(
    serve: Serve, rule: str, wrong: run_pb2.Recipe, problem: str
) -> None:
    serving = await serve(rule=rule)
    refusal = await refused(serving.worker().join(recipe=wrong), "MALFORMED")
    assert problem in refusal.message
    assert not (await serving.status()).workers


async def test_the_largest_legal_recipe_is_taken(serve: Serve) -> None:
    serving = await auto(serve)
    largest = _many(MAX_GROUPS, MAX_GROUP_SETTINGS)
    assert largest.ByteSize() > 64 << 10
    assert (await serving.worker().join(recipe=largest)).settings.recipe == largest


async def _stopped(serving: Serving) -> None:
    await serving.close()
    await serving.stop()


async def _killed(serving: Serving) -> None:
    """Stop the server as SIGKILL would after the newest commit, so that nothing more is written."""
    serving.server.persistence.write_last = _nothing  # type: ignore[method-assign]
    await _stopped(serving)


async def _nothing() -> None:
    return None


@pytest.mark.parametrize("durability", ["interval", "commit"])
@pytest.mark.parametrize("end", [_stopped, _killed])
@pytest.mark.parametrize("own", [recipe("movement", "LAMB", {"lr": 0.01}), None])
async def test_the_decision_survives_a_restart(
    serve: Serve, tmp_path: Path, durability: str, end: Callable[..., Any], own: run_pb2.Recipe | None
) -> None:
    settings = {"data_dir": tmp_path, "durability": durability}
    serving = await auto(serve, **settings)
    worker = await serving.joined(recipe=own, features=ALL)
    await worker.initialize()
    before, told = worker.membership.settings, await rule_of(serving)
    await end(serving)
    serving = await auto(serve, resume=True, **settings)
    assert await rule_of(serving) == told
    other = recipe(optimizer="Adam")
    await refused(serving.worker().join(recipe=other, features=ALL), "RECIPE")
    assert (await serving.worker().join(recipe=own, features=ALL)).settings == before


async def test_a_run_that_began_under_a_named_rule_goes_on_with_gradients(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(rule="gem", data_dir=tmp_path)
    await (await serving.joined()).initialize()
    await _stopped(serving)
    serving = await auto(serve, data_dir=tmp_path, resume=True)
    assert await rule_of(serving) == "rule auto: gem, direction gradient, eta 0.05"
    await refused(serving.worker().join(recipe=recipe()), "RECIPE")
    assert (await serving.worker().join(features=ALL)).settings.direction == ""


async def test_a_resumed_server_that_names_its_rule_needs_no_recipe(serve: Serve, tmp_path: Path) -> None:
    serving = await auto(serve, data_dir=tmp_path)
    await (await serving.joined(recipe=recipe())).initialize()
    await _stopped(serving)
    serving = await serve(rule="downpour", data_dir=tmp_path, resume=True)
    settings = (await serving.worker().join()).settings
    assert (settings.rule, settings.HasField("recipe")) == ("downpour", False)


@pytest.mark.parametrize("own", [recipe("movement", "LAMB", {"lr": 0.01}), None], ids=["recipe", "direction"])
@pytest.mark.parametrize("end", [_stopped, _killed])
async def test_a_named_rule_in_between_keeps_the_first_workers_decision(
    serve: Serve, tmp_path: Path, own: run_pb2.Recipe | None, end: Callable[..., Any]
) -> None:
    settings: dict[str, Any] = {"data_dir": tmp_path, "durability": "commit"}
    serving = await auto(serve, **settings)
    worker = await serving.joined(recipe=own, features=ALL)
    await worker.initialize()
    before, told = worker.membership.settings, await rule_of(serving)
    await end(serving)
    for _ in range(2):
        serving = await serve(rule="gem", resume=True, **settings)
        (other,) = await serving.training()
        await other.commit(other.delta(1))
        await end(serving)
    serving = await auto(serve, resume=True, **settings)
    assert await rule_of(serving) == told
    assert (await serving.worker().join(recipe=own, features=ALL)).settings == before
    refusal = await refused(serving.worker().join(recipe=recipe(), features=ALL), "RECIPE")
    assert "name the server's rule" in refusal.message


async def test_the_checkpoint_has_the_recipe_in_full(serve: Serve, tmp_path: Path) -> None:
    serving = await auto(serve, data_dir=tmp_path)
    await (await serving.joined(recipe=recipe())).initialize()
    await serving.stub.Control(CHECKPOINT)
    state = json.loads((tmp_path / "latest" / "state.json").read_text())
    assert state["choice"]["recipe"] == {
        "kind": "rms",
        "optimizer": "AdamW",
        "groups": [{"beta2": 0.99, "lr": 0.001}],
        "group_of_parameter": [0] * COUNT,
    }


def test_rule_auto_is_a_choice_and_eta_is_that_of_its_direction() -> None:
    settings = server_settings(rule="auto")
    assert (settings.rule, settings.rule_name, settings.eta) == ("auto", "gem", 0.002)
