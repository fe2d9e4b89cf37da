"""Commits with a learning rate and decays of their own, through the client library, against NumPy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_worker.client import Observer, ServerRefusedError

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.recipe import Recipe, RecipeKind
from gem_core.shards import Shard
from tests.core import slow
from tests.shards.group import Float32, Group, Worker, start

WORKERS, ROUNDS = 2, 4
# Large enough to share memory also in thirds, with cuts within tensors of different groups.
MODEL = Layout(
    [
        TensorSpec("embedding", (400, 80), ElementType.FLOAT32, TensorKind.PARAMETER, is_embedding=True),
        TensorSpec("weight", (301, 111), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("bias", (2_003,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("scale", (31,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)
GROUP_OF_PARAMETER = (0, 1, 1, 0)
GROUPS = ({"lr": 0.001, "weight_decay": 0.1}, {"lr": 0.002, "weight_decay": 0.3})
TRANSPORTS = {"LANE": {}, "GRPC": {"lane_port": -1}, "SHARED_MEMORY": {}}


def recipe(kind: RecipeKind) -> Recipe:
    return Recipe(kind, "AdamW", GROUPS, GROUP_OF_PARAMETER)


def serve(shards: int, transport: str, folder: Path) -> Group:
    sockets = folder if transport == "SHARED_MEMORY" else None
    others: dict[str, Any] = TRANSPORTS[transport]
    return start(shards, sockets=sockets, of_secondaries=others, rule="auto", **others)


def begin(group: Group, kind: RecipeKind) -> list[Worker]:
    workers = [Worker(group.address, number, MODEL, recipe=recipe(kind)) for number in range(WORKERS)]
    for worker in workers:
        worker.begin()
    for worker in workers:
        worker.pull()
    return workers


def rates(step: int) -> tuple[float, tuple[float, ...]]:
    """The learning rate of a step, and its decays by groups; the last steps have none."""
    eta = 0.01 / (1 + step)
    return eta, tuple(10 * eta * group["weight_decay"] for group in GROUPS) if step < 6 else ()


@dataclass
class Twin:
    """The rule with decay, one NumPy operation after the other; what each worker holds, and its moment."""

    theta: Float32
    settings: slow.GemSettings

    def __post_init__(self) -> None:
        self.held = [self.theta.copy() for _ in range(WORKERS)]
        self.moments = [np.zeros_like(self.theta) for _ in range(WORKERS)]

    def restarted(self) -> "Twin":
        """The same run after a restart: workers pull, and their moments begin anew."""
        return Twin(self.theta.copy(), self.settings)

    def commit(self, worker: int, delta: Float32, decays: tuple[float, ...]) -> Float32:
        outcome = slow.gem(self.theta, self.held[worker], self.moments[worker], delta, self.settings, np.float32)
        shares = [1 - float(np.float32(decay)) for decay in decays] or [1.0] * len(GROUPS)
        kept = [
            np.full(spec.elements, shares[group], np.float32)
            for spec, group in zip(MODEL.parameters, GROUP_OF_PARAMETER, strict=True)
        ]
        self.theta = np.concatenate(kept) * self.theta + outcome.update
        self.held[worker], self.moments[worker] = self.theta, outcome.moment
        return self.theta


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("transport", "kind"),
    [
        ("LANE", RecipeKind.RMS),
        ("LANE", RecipeKind.MOVEMENT),
        ("GRPC", RecipeKind.RMS),
        ("SHARED_MEMORY", RecipeKind.RMS),
    ],
)
def test_commits_with_rates_of_their_own_are_what_numpy_computes(
    tmp_path: Path, transport: str, kind: RecipeKind, shards: int
) -> None:
    group = serve(shards, transport, tmp_path)
    try:
        workers = begin(group, kind)
        twin = Twin(workers[0].parameters, slow.GemSettings(**recipe(kind).rule_settings()))  # type: ignore[arg-type]
        for step in range(WORKERS * ROUNDS):
            worker = workers[step % WORKERS]
            eta, decays = rates(step)
            delta = worker.delta()
            found = worker.client.commit(delta, worker.into, eta=eta, decays=decays)
            expected = twin.commit(step % WORKERS, np.frombuffer(delta, np.float32, MODEL.parameter_count), decays)
            assert worker.parameters.tobytes() == expected.tobytes()
            assert found.verdict is not None
            assert found.verdict.next_eta == eta
            assert found.verdict.progress == pytest.approx((step + 1) / WORKERS)
            assert {server.in_loop(lambda s=server: s.server.run.own_eta) for server in group.servers} == {eta}
        assert group.parameters().tobytes() == twin.theta.tobytes()
        for server in group.servers:
            with Observer(server.address) as observer:
                used = {one["transport"] for one in observer.get_status()["workers"]}
            assert used == {f"TRANSPORT_KIND_{transport}"}
        late = Worker(group.address, WORKERS, MODEL, recipe=recipe(kind))
        assert late.client.join().progress == ROUNDS
        late.end()
        for worker in workers:
            worker.end()
    finally:
        group.stop()


@pytest.mark.parametrize("durability", ["interval", "commit"])
@pytest.mark.parametrize("shards", [1, 3])
def test_groups_and_rates_go_on_after_a_restart(tmp_path: Path, shards: int, durability: str) -> None:
    twin = None
    for process in range(2):
        group = start(shards, tmp_path, rule="auto", durability=durability, resume=True)
        try:
            workers = begin(group, RecipeKind.MOVEMENT)
            settings = slow.GemSettings(**recipe(RecipeKind.MOVEMENT).rule_settings())  # type: ignore[arg-type]
            twin = twin.restarted() if twin is not None else Twin(workers[0].parameters, settings)
            assert group.parameters().tobytes() == twin.theta.tobytes()
            assert workers[0].client.membership.progress == 3 * process
            for step in range(6):
                eta, decays = rates(step)
                delta = workers[step % WORKERS].delta()
                workers[step % WORKERS].client.commit(delta, workers[step % WORKERS].into, eta=eta, decays=decays)
                twin.commit(step % WORKERS, np.frombuffer(delta, np.float32, MODEL.parameter_count), decays)
            assert group.parameters().tobytes() == twin.theta.tobytes()
            for worker in workers:
                worker.client.leave("interrupted")
                worker.client.close()
        finally:
            group.stop()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "eta is unset, and this run has a recipe: send the learning rate of its first group"),
        ({"eta": -0.001}, "eta is -0.001"),
        ({"eta": float("inf")}, "eta is inf"),
        ({"eta": float("nan")}, "eta is nan"),
        ({"eta": 0.001, "decays": (0.1,)}, "the commit has 1 decays, and the run's recipe 2 groups"),
        ({"eta": 0.001, "decays": (0.1, 1.0)}, "the decay of group 1 is 1"),
        ({"eta": 0.001, "decays": (-0.1, 0.5)}, "the decay of group 0 is -0.1"),
        ({"eta": 0.001, "decays": (0.1,) * 257}, "at most 256"),
    ],
)
def test_rates_that_do_not_fit_the_recipe_are_refused_and_change_nothing(
    tmp_path: Path, shards: int, given: dict[str, Any], message: str
) -> None:
    group = serve(shards, "LANE", tmp_path)
    try:
        worker, other = begin(group, RecipeKind.RMS)
        before = group.parameters()
        with pytest.raises(ServerRefusedError, match=message) as refused:
            worker.commit(**given)
        assert refused.value.reason == "MALFORMED"
        assert np.array_equal(group.parameters(), before)
        for one in (worker, other):
            assert one.commit(eta=0.0, decays=(0.0, 0.5)).applied
            one.end()
    finally:
        group.stop()


@pytest.mark.parametrize("given", [{"eta": 0.05}, {"decays": (0.1,)}])
def test_a_run_without_a_recipe_takes_no_rates(tmp_path: Path, given: dict[str, Any]) -> None:
    group = start(1, rule="gem")
    try:
        worker = Worker(group.address, 0, MODEL)
        worker.begin()
        worker.pull()
        with pytest.raises(
            ServerRefusedError, match=r"this run has no recipe, .*: leave eta and decays out"
        ) as refused:
            worker.commit(**given)
        assert refused.value.reason == "MALFORMED"
        assert worker.commit().applied
        worker.end()
    finally:
        group.stop()


def test_each_cut_has_tensors_of_both_groups() -> None:
    """Otherwise the tests above would show little."""
    layouts = [Shard(index, 3).layout_of(MODEL) for index in range(3)]
    assert [recipe(RecipeKind.RMS).groups_of(layout) for layout in layouts] == [(0,), (0, 1), (1, 1, 0)]
