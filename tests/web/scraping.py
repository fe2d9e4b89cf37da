"""A run with something to see in each metric, and what /metrics says of it."""

from pathlib import Path

import aiohttp
from gemps.v1 import operations_pb2

from tests.web.viewers import url
from tests.wire.conftest import Serve
from tests.wire.refusals import PATIENCE
from tests.wire.serving import Serving


async def run_with_everything(serve: Serve, data_dir: Path) -> Serving:
    """Two workers have committed, an evaluator has reported, a checkpoint was written."""
    serving = await serve(dashboard="127.0.0.1:0", data_dir=data_dir)
    first, second = await serving.training(2)
    for step in range(3):
        await first.commit(first.delta(step), loss=2.0, samples=10)
    await second.commit(second.delta(9), loss=1.0, samples=10)
    await serving.stub.ReportEvaluation(
        operations_pb2.ReportEvaluationRequest(version=second.version, loss=1.0, accuracy=0.5, samples=9),
        timeout=PATIENCE,
    )
    order = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT)
    await serving.stub.Control(order, timeout=PATIENCE)
    return serving


async def metrics_text(serving: Serving) -> str:
    """What a scrape gets."""
    async with aiohttp.ClientSession() as session, session.get(url(serving, "metrics")) as got:
        return await got.text()
