"""No worker is favoured: Jain's index of the commits under a shared budget, measured while all workers live."""

from collections.abc import Callable, Sequence

import pytest
from gem_server.flow.request_queue import RequestQueue
from gem_server.flow.requests import AnyRequest
from gem_server.flow.staging_pool import BufferLease
from gem_server.state.sessions import Session

from tests.wire.calls import Stream
from tests.wire.conftest import Serve
from tests.wire.model import Model, Tensor
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker, all_of

WORKERS = 32
BUDGET = 3_200
FAIR = 0.99
TINY = Model((Tensor("weight", (500,)),))


class LowRanksFirst(RequestQueue):
    """What the original had to avoid: whoever has the lowest rank is served first, in the queue and at the buffers."""

    def __init__(self, ring: Callable[[], Sequence[Session]], started: Callable[[], bool]) -> None:
        super().__init__(started)
        self._requests: list[AnyRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: AnyRequest) -> None:
        self._requests.append(request)
        self.wake()

    def next(self) -> AnyRequest | None:
        if not self._requests:
            return None
        first = min(self._requests, key=lambda request: request.session.worker.rank if request.session else -1)
        self._requests.remove(first)
        return first

    def pick(self, waiting: Sequence[BufferLease], holding: Sequence[BufferLease]) -> BufferLease | None:
        return super().pick(sorted(waiting, key=lambda hold: hold.session.worker.rank), holding)


async def commit_as_fast_as_possible(worker: RawWorker) -> None:
    """Until the shared budget is spent."""
    message = worker.prepare(worker.delta(1)).whole()
    stream = Stream(worker.stub.Commit())

    async def go_on() -> None:
        while True:
            await stream.send(message)
            answer = await stream.receive()
            message.header.sequence += 1
            message.header.base_version.CopyFrom(answer.verdict.version)

    await refused(go_on(), "RUN_FINISHED")


async def index_of_a_shared_budget(serving: Serving) -> float:
    """Jain's index as the status tells it when the budget is spent and all workers still live."""
    workers = await serving.training(WORKERS, TINY)
    await all_of(*(commit_as_fast_as_possible(worker) for worker in workers))
    status = await serving.status()
    counts = [worker.commits for worker in status.workers]
    assert sum(counts) == status.commits == BUDGET
    expected = sum(counts) ** 2 / (WORKERS * sum(count * count for count in counts))
    assert status.jain_index == pytest.approx(expected)
    return status.jain_index


@pytest.mark.parametrize("staging_buffers", [0, 1, 4])  # 0, the default: of this model one for each worker
async def test_workers_share_a_budget_fairly_in_fifo_order(serve: Serve, staging_buffers: int) -> None:
    serving = await serve(commits=BUDGET, min_workers=WORKERS, staging_buffers=staging_buffers)
    assert await index_of_a_shared_budget(serving) >= FAIR


@pytest.mark.long
async def test_queue_that_prefers_low_ranks_fails_the_check_of_fairness(serve: Serve) -> None:
    """The check can fail: with such a queue it does, by far (about 0.4)."""
    serving = await serve(make_queue=LowRanksFirst, commits=BUDGET, min_workers=WORKERS, staging_buffers=1)
    assert await index_of_a_shared_budget(serving) < FAIR
