"""`--order trace`: a real server follows an order that it is given, whoever asks first."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from gem_server.errors import StartupError
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gemps.v1 import run_pb2
from pydantic import ValidationError

from gem_trace import replay
from tests.trace.orders import commits_of, order_of, write_order
from tests.wire.conftest import Serve
from tests.wire.model import LARGE, SMALL, Model
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker, all_of

FINISHED = run_pb2.RUN_STATE_FINISHED


def shuffled(seed: int, workers: int, commits: int) -> str:
    """An order of as many commits a worker that no server would come to by itself; the last worker pulls late."""
    turns = [rank for rank in range(workers) for _ in range(commits)]
    random.Random(seed).shuffle(turns)
    late = next(index for index, rank in enumerate(turns) if rank == workers - 1)
    words = [f"c{rank}" for rank in turns]
    words.insert(late, f"p{workers - 1}")
    return " ".join([*(f"p{rank}" for rank in reversed(range(workers - 1))), *words])


async def train(
    serving: Serving, counts: Counter[int], model: Model = SMALL, *, highest_first: bool = True
) -> list[RawWorker]:
    """Workers of which each makes its commits as fast as it can; they begin by rank."""
    workers = [await serving.joined(model) for _ in sorted(counts)]
    await workers[0].initialize()

    async def work(rank: int) -> None:
        await workers[rank].pull()
        for step in range(counts[rank]):
            await workers[rank].commit(workers[rank].delta(1000 * rank + step))

    await all_of(*(work(rank) for rank in sorted(counts, reverse=highest_first)))
    return workers


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("buffers", [1, 4])
@pytest.mark.parametrize("seed", [1, 2])
async def test_order_is_followed_exactly(serve: Serve, tmp_path: Path, seed: int, buffers: int) -> None:
    order = shuffled(seed, workers=4, commits=5)
    settings = {"order_trace": write_order(tmp_path / "a.trace", order), "staging_buffers": buffers}
    serving = await serve(order="trace", min_workers=4, record=tmp_path / "b.trace", **settings)
    await train(serving, Counter(commits_of(order)), LARGE)
    await serving.stop()
    assert order_of(tmp_path / "b.trace") == order
    assert replay(tmp_path / "b.trace").compared_end


async def test_what_was_recorded_is_forced_and_ends_with_the_same_bytes(serve: Serve, tmp_path: Path) -> None:
    """First come, first served; then in that order, though others come first."""
    first, again = tmp_path / "first.trace", tmp_path / "again.trace"
    counts = Counter({0: 6, 1: 6, 2: 6})
    serving = await serve(record=first, min_workers=3, steps=6)
    await train(serving, counts)
    await serving.stop()
    serving = await serve(record=again, order="trace", order_trace=first, min_workers=3, steps=6)
    await train(serving, counts, highest_first=False)
    await serving.stop()
    assert order_of(again) == order_of(first)
    assert replay(again).end_digest == replay(first).end_digest


async def test_budget_goes_to_those_whose_turn_it_is_not_to_who_is_complete_first(serve: Serve, tmp_path: Path) -> None:
    order = write_order(tmp_path / "a.trace", "p0 p1 p2 c0 c1 c2 c0")
    serving = await serve(order="trace", order_trace=order, min_workers=3, commits=2, staging_buffers=4)
    workers = await serving.training(3, LARGE)
    streams = [worker.commit_stream() for worker in workers]
    commits = [worker.prepare(worker.delta(1)) for worker in workers]
    await streams[2].send(commits[2].opening())
    await serving.until_waiting(1)
    for number in (0, 1):
        await streams[number].send_opening(commits[number])
    await streams[1].send_rest(commits[1])
    await serving.until_queued(1)
    await streams[0].send_rest(commits[0])
    outcomes = await all_of(streams[0].outcome(), streams[1].outcome())
    assert [outcome.verdict.version.clock for outcome in outcomes] == [2, 3]
    assert outcomes[1].verdict.run_state == FINISHED
    await streams[2].refused("RUN_FINISHED")


async def test_turns_of_a_worker_that_leaves_pass_on_and_behind_the_order_all_go_on(
    serve: Serve, tmp_path: Path
) -> None:
    order = write_order(tmp_path / "a.trace", "p0 p1 p2 c0 c1 c2 c1 c0 c1 c2")
    serving = await serve(order="trace", order_trace=order, min_workers=3, record=tmp_path / "b.trace")
    first, second, third = await serving.training(3)
    await first.commit(first.delta(1))
    waiting = asyncio.create_task(third.commit(third.delta(1)))
    await second.leave()
    await waiting
    await all_of(third.commit(third.delta(2)), first.commit(first.delta(2)))
    for _ in range(2):
        await all_of(third.commit(third.delta(3)), first.commit(first.delta(3)))
    await serving.stop()
    assert order_of(tmp_path / "b.trace").startswith("p0 p1 p2 c0 c2 c0 c2 ")
    assert Counter(commits_of(order_of(tmp_path / "b.trace"))) == {0: 4, 2: 4}


async def test_resumed_run_goes_on_in_the_order(serve: Serve, tmp_path: Path) -> None:
    whole = "p0 p1 c1 c1 c0 c1 c0 c0 c0 c1"
    settings = {"order_trace": write_order(tmp_path / "a.trace", whole), "record": tmp_path / "b.trace"}
    settings |= {"order": "trace", "min_workers": 2, "data_dir": tmp_path / "state"}
    serving = await serve(**settings)
    workers = await serving.training(2)
    for rank in (1, 1, 0):
        await workers[rank].commit(workers[rank].delta(1))
    await serving.close()
    await serving.stop()
    serving = await serve(**settings, resume=True)
    workers = [await serving.joined(name=f"worker-{number}") for number in range(2)]

    async def work(rank: int, commits: int) -> None:
        await workers[rank].pull()
        for step in range(commits):
            await workers[rank].commit(workers[rank].delta(step))

    await all_of(work(0, 3), work(1, 2))
    await serving.stop()
    assert commits_of(order_of(tmp_path / "b.trace")) == commits_of(whole)


async def test_workers_are_told_the_order_and_how_many_begin(serve: Serve, tmp_path: Path) -> None:
    order = write_order(tmp_path / "a.trace", "p0 p1 c1 c0")
    serving = await serve(order="trace", order_trace=order, min_workers=2)
    worker = await serving.joined()
    assert worker.membership.settings.order == run_pb2.SERVING_ORDER_TRACE
    assert worker.membership.settings.min_workers == 2


def test_order_that_cannot_be_followed_is_refused_with_the_fix(tmp_path: Path) -> None:
    order = write_order(tmp_path / "a.trace", "p0 p1 p2 c2 c1 c0")
    with pytest.raises(StartupError, match=r"turns of 3 workers.*--min-workers is 2.*--min-workers 3; gemps train"):
        Server(ServerSettings(order="trace", order_trace=order, min_workers=2))
    (tmp_path / "notes").write_text("notes " * 100)
    with pytest.raises(StartupError, match=r"--order-trace: .*notes is not a trace of gemps .* choose another file"):
        Server(ServerSettings(order="trace", order_trace=tmp_path / "notes"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"order": "trace"}, "--order trace needs --order-trace FILE"),
        ({"order_trace": "a.trace"}, "--order-trace needs --order trace, and the order is fifo"),
        ({"order": "trace", "order_trace": "a.trace", "record": "./a.trace"}, "--record would write into the file"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ServerSettings(**settings)  # type: ignore[arg-type]  # as a command line gives them
