"""`--rule auto` with several shards: the primary's first worker decides, and the others follow."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_server.durability import shard_files
from gem_server.errors import StartupError
from gem_worker.client import ServerRefusedError
from gem_worker.parameter_server import FEATURES

from gem_core.recipe import Recipe, RecipeKind
from tests.client.real_server import RealServer
from tests.shards.group import Float32, Group, Worker, free_port, serving

WORKERS, ROUNDS = 3, 3
GROUPS = ({"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.02, "weight_decay": 0.0})
TRANSLATED = Recipe(RecipeKind.RMS, "AdamW", GROUPS, (0, 0, 1))
MOVED = Recipe(RecipeKind.MOVEMENT, "LAMB", GROUPS, (0, 1, 1))


def momenta(group: Group) -> list[float]:
    """Return the momentum of each shard's rule, which shows whether workers apply the momentum themselves."""
    return [server.in_loop(lambda one=server: one.server.rule.settings["momentum"]) for server in group.servers]


def recipes(group: Group) -> list[Recipe | None]:
    return [server.in_loop(lambda one=server: one.server.recipe.recipe) for server in group.servers]


def train(shards: int, folder: Path, first: int, recipe: Recipe, *, crash: bool) -> Float32:
    """Train workers in turn, in rounds `first` to `first` + ROUNDS. Returns theta.

    Args:
        shards: number of servers, which resume what is in `folder`.
        folder: the folder of their data directories.
        first: number of rounds that were trained before.
        recipe: the recipe of all workers.
        crash: whether `folder` then has what was on the disk at the last commit, as if all servers had been killed.
    """
    with serving(shards, folder, rule="auto", durability="commit", resume=True) as group:
        workers = [Worker(group.address, number, recipe=recipe) for number in range(WORKERS)]
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.pull()
            for _ in range(first):
                worker.delta()
        for turn in range(ROUNDS):
            rate = 0.01 / (1 + first + turn)
            for worker in workers:
                assert worker.commit(eta=rate, decays=(rate, 0.0)).applied
        assert recipes(group) == [recipe] * shards
        image = folder.with_name(f"{folder.name}-image")
        if crash:
            shutil.copytree(folder, image, symlinks=True)
        for worker in workers:
            worker.end()
        theta = group.parameters()
    if crash:
        shutil.rmtree(folder)
        image.rename(folder)
    return theta


@pytest.mark.parametrize("recipe", [TRANSLATED, MOVED], ids=lambda recipe: str(recipe.kind))
def test_other_numbers_of_shards_go_on_with_the_recipe_bit_for_bit(recipe: Recipe, tmp_path: Path) -> None:
    """Compare one server that is killed twice with 1, 3 and 1 servers, each group resuming from the last."""
    for part in range(3):
        expected = train(1, tmp_path / "whole", part * ROUNDS, recipe, crash=True)
    train(1, tmp_path / "a", 0, recipe, crash=True)
    shard_files.split(tmp_path / "a" / "0", 3, tmp_path / "b")
    train(3, tmp_path / "b", ROUNDS, recipe, crash=True)
    shard_files.merge([tmp_path / "b" / str(index) for index in range(3)], tmp_path / "c" / "0")
    found = train(1, tmp_path / "c", 2 * ROUNDS, recipe, crash=False)
    assert np.array_equal(found, expected)


def test_all_shards_decide_anew_once_all_workers_have_left_without_parameters() -> None:
    with serving(3, rule="auto") as group:
        first = Worker(group.address, 0, recipe=MOVED)
        first.client.join()
        assert momenta(group) == [0.0] * 3
        first.end()
        second = Worker(group.address, 1, features=FEATURES)
        assert second.client.join().run_settings.direction == "auto"
        assert momenta(group) == [0.0] * 3
        assert recipes(group) == [None] * 3
        assert {server.in_loop(server.server.choice.describe) for server in group.servers} == {
            "rule auto: gem, direction auto, eta 0.002"
        }
        second.end()
        third = Worker(group.address, 2, recipe=TRANSLATED)
        third.begin()
        third.pull()
        assert third.commit(eta=0.01, decays=(0.001, 0.0)).applied
        assert recipes(group) == [TRANSLATED] * 3
        assert momenta(group) == [0.9] * 3
        other = Worker(group.address, 3, recipe=MOVED)
        with pytest.raises(ServerRefusedError, match="the optimizer is LAMB, the run has AdamW"):
            other.client.join()
        other.client.close()
        third.end()


@pytest.mark.parametrize("of_secondary", [{"rule": "gem"}, {"rule": "auto", "rule_settings": "kappa=2"}])
def test_a_secondary_that_does_not_let_the_first_worker_decide_as_the_primary_does_is_refused(
    of_secondary: dict[str, Any],
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as threads:
        primary = threads.submit(RealServer, shard="0/2", bind=address, rule="auto")
        with pytest.raises(StartupError, match="give both the same --rule, its settings"):
            RealServer(shard="1/2", primary=address, **of_secondary)
        secondary = RealServer(shard="1/2", primary=address, rule="auto")
        Group([primary.result(), secondary]).stop()
