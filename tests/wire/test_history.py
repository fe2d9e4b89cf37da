"""GetHistory, and what the status tells of distributions."""

import math

import pytest
from gemps.v1 import history_pb2, operations_pb2, status_pb2

from tests.waiting import eventually_async
from tests.wire.calls import Stream
from tests.wire.conftest import Serve
from tests.wire.model import SMALL
from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving


async def history(serving: Serving, after: float = 0.0) -> history_pb2.GetHistoryResponse:
    return await serving.stub.GetHistory(history_pb2.GetHistoryRequest(after_seconds=after), timeout=PATIENCE)


async def until_told(serving: Serving, commits: int) -> history_pb2.GetHistoryResponse:
    """The history once its intervals have so many commits."""

    async def look() -> history_pb2.GetHistoryResponse | None:
        told = await history(serving)
        return told if sum(one.commits for one in told.intervals) >= commits else None

    found = await eventually_async(look)
    assert found is not None
    return found


async def test_before_training_there_is_no_history(serving: Serving) -> None:
    told = await history(serving)
    assert not told.intervals
    assert not told.evaluations
    assert not told.tensors.names
    assert told.generation > 0


async def test_curves_of_a_run(serve: Serve) -> None:
    serving = await serve(commits=12)
    first, second = await serving.training(2)
    for step in range(6):
        await first.commit(first.delta(step), loss=4.0, samples=10)
        await second.commit(second.delta(step + 10), loss=2.0, samples=10)
    told = await until_told(serving, 12)
    interval = told.intervals[0]
    assert interval.ends > interval.begins >= 0
    assert told.intervals[-1].clock == 13
    assert interval.loss == pytest.approx(3.0, abs=0.5)
    assert interval.staleness_max == 1
    assert 0 <= interval.blocked_fraction <= 1
    assert interval.update_norm > 0
    assert interval.jain_index > 0.9
    assert interval.anonymous_bytes > 0
    assert list(told.tensors.names) == [one.name for one in SMALL.tensors if one.kind == "parameter" and one.elements]


async def test_only_what_is_new_when_asked_so(serve: Serve) -> None:
    serving = await serve(commits=1)
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    for accuracy in (0.5, 0.25):
        await serving.stub.ReportEvaluation(
            operations_pb2.ReportEvaluationRequest(version=worker.version, loss=1.0, accuracy=accuracy, samples=9),
            timeout=PATIENCE,
        )
    told = await until_told(serving, 1)
    assert [one.accuracy for one in told.evaluations] == [0.5, 0.25]
    later = await history(serving, after=told.intervals[-1].ends)
    assert not later.intervals
    assert later.generation == told.generation


async def test_a_moment_that_is_no_number_is_refused(serving: Serving) -> None:
    await refused(history(serving, after=math.nan), "MALFORMED")


async def test_distributions_count_every_commit(serving: Serving) -> None:
    first, second = await serving.training(2)
    for step in range(4):
        await first.commit(first.delta(step))
    await second.commit(second.delta(1))
    status = await serving.status()
    ada, bob = status.workers
    assert (sum(ada.staleness.counts), sum(ada.wait.counts)) == (4, 4)
    assert (ada.staleness.counts[0], bob.staleness.counts[list(bob.staleness.bounds).index(4)]) == (4, 1)
    assert (sum(status.staleness.counts), status.staleness.sum) == (5, 4)
    assert 0 <= ada.wait_p50_seconds <= ada.wait_p99_seconds <= ada.wait_max_seconds
    assert 0 <= ada.recent_blocked_fraction <= 1
    assert bob.recent_mean_pi == bob.statistics.mean_pi  # of one commit
    assert status.clamped_fraction == pytest.approx(
        (ada.statistics.clamped_fraction + bob.statistics.clamped_fraction) / 2
    )
    assert 0 <= status.wait_p50_seconds <= status.wait_p99_seconds
    assert status.wait_p99_seconds <= max(ada.wait_max_seconds, bob.wait_max_seconds)
    assert (ada.staleness_p99, bob.staleness_p99) == (0, pytest.approx(3.99))


async def test_a_worker_that_is_not_heard_of_any_more_is_gone(serve: Serve) -> None:
    serving = await serve(session_timeout=0.3)
    first, second = await serving.training(2)
    await first.commit(first.delta(1))
    await second.close()
    gone = status_pb2.WORKER_CONDITION_GONE
    status = await serving.until(lambda seen: seen.workers[1].condition == gone)
    assert status.workers[1].state == status_pb2.WORKER_STATE_EXPIRED


async def test_a_watched_status_has_quantiles_and_no_histogram_of_each_worker(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    stream = Stream(serving.stub.WatchStatus(status_pb2.WatchStatusRequest(interval_seconds=0.1)))
    message = await stream.receive()
    assert message is not None
    (seen,) = message.status.workers
    assert not seen.staleness.counts
    assert seen.HasField("recent_mean_pi")
    assert seen.wait_p99_seconds >= seen.wait_p50_seconds >= 0
    assert sum(message.status.staleness.counts) == 1
