"""CommitHeader.scale: PARAMETERs are multiplied by it, in every wire type, as float32 rounds the products."""

import numpy as np
import pytest

from tests.wire.conftest import Serve
from tests.wire.model import DELTA_WIRE_TYPES, FLOAT32, LARGE, SMALL, Model, Values, decode_parameters
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker

pytestmark = pytest.mark.usefixtures("each_transport")


def sent(worker: RawWorker, gradient: Values) -> Values:
    """Return the values of a gradient as the worker's payload has them."""
    payload = worker.model.encode(gradient, worker.delta_wire_type)
    border = worker.model.parameter_bytes(worker.delta_wire_type)
    return Values(
        decode_parameters(payload[:border], worker.delta_wire_type, worker.model.parameter_count), gradient.rest
    )


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
@pytest.mark.parametrize("wire_type", DELTA_WIRE_TYPES)
async def test_gradients_may_travel_as_they_are(serve: Serve, model: Model, wire_type: int) -> None:
    serving = await serve(rule="downpour")
    (worker,) = await serving.training(1, model, delta_wire_types=[wire_type])
    before = (await worker.pull()).values.parameters
    gradient = worker.model.random_values(1)
    reply = (await worker.commit(gradient, scale=-0.05)).reply.values
    delta = sent(worker, gradient).parameters * np.float32(-0.05)
    assert reply.parameters.tobytes() == (before + delta).tobytes()
    assert reply.rest == gradient.rest


async def test_a_product_that_is_too_large_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    gradient = worker.model.random_values(1)
    gradient.parameters[7] = 1e29
    refusal = await serving.refuses(worker, worker.prepare(gradient, scale=100.0), "BAD_VALUE")
    assert "'weight', element 7" in refusal.message


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
async def test_a_scale_that_is_not_finite_is_refused(serving: Serving, scale: float) -> None:
    (worker,) = await serving.training(1)
    await serving.refuses(worker, worker.prepare(worker.delta(1), scale=scale), "MALFORMED")


async def test_a_repeat_is_recognised_by_the_bytes_that_travelled(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    assert worker.delta_wire_type == FLOAT32
    commit = worker.prepare(worker.delta(1), scale=-0.5)
    await worker.commit_on_new_stream(commit)
    assert (await worker.commit_stream().outcome_of_repeat(commit)).verdict.duplicate
