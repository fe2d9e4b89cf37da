"""Commits of a run with a recipe: repeats, and what a status tells of their learning rates."""

import pytest
from gemps.v1 import run_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker

pytestmark = pytest.mark.usefixtures("each_transport_and_tls")

BOTH_SIZES = pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])


async def training(serve: Serve, model: Model, count: int = 2) -> tuple[Serving, list[RawWorker]]:
    recipe = run_pb2.Recipe(
        kind="rms",
        optimizer="AdamW",
        groups=[run_pb2.RecipeGroup(settings={"lr": 0.01})],
        group_of_parameter=[0] * sum(tensor.kind == "parameter" for tensor in model.tensors),
    )
    serving = await serve(rule="auto")
    return serving, await serving.training(count, model, recipe=recipe)


@BOTH_SIZES
async def test_a_repeat_is_answered_whatever_its_rates_and_applied_once(serve: Serve, model: Model) -> None:
    serving, (worker, other) = await training(serve, model)
    commit = worker.prepare(worker.delta(1), eta=0.02, decays=[0.5]).repeated()
    original = await worker.commit_on_new_stream(commit)
    assert (original.verdict.next_eta, original.verdict.progress) == (0.02, 0.5)
    assert (await other.commit(other.delta(2), eta=0.03)).verdict.progress == 1
    before = await serving.central(model)
    for eta in (0.02, -1.0, None):
        if eta is None:
            commit.header.ClearField("eta")
            commit.header.ClearField("decays")
        else:
            commit.header.eta = eta
        stream = worker.commit_stream()
        await stream.send(commit.opening())
        verdict = (await stream.outcome()).verdict
        assert verdict.duplicate
        assert (verdict.sequence, verdict.version) == (1, original.verdict.version)
        assert (verdict.next_eta, verdict.progress) == (0.03, 1)  # those of now
    assert await serving.central(model) == before
    assert (await serving.status()).commits == 2


async def test_the_status_tells_the_learning_rate_of_the_newest_commit(serve: Serve) -> None:
    serving, (worker, other) = await training(serve, SMALL)
    assert (await serving.status()).next_eta == 0.01
    for number, (one, eta) in enumerate(((worker, 0.02), (other, 0.005), (worker, 0.0))):
        await one.commit(one.delta(number), eta=eta)
        assert (await serving.status()).next_eta == eta
    assert (await other.heartbeat()).next_eta == 0
