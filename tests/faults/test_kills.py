"""A server that is killed at random moments under load comes back with what it acknowledged, bit for bit."""

import asyncio
import random
from pathlib import Path

import grpc
import pytest

from gem_trace import read_records, replay
from gem_trace.files import map_file
from tests.faults.history import Deltas
from tests.faults.load import LoggedWorker, crew, everybody_connects
from tests.faults.processes import EACH_OVER_TRANSPORTS, count, kill, over, start
from tests.figures import Figures
from tests.wire.model import SMALL, Model, Values
from tests.wire.processes import ServerProcess
from tests.wire.serving import Endpoint

LOOK_SECONDS = 0.05  # between two looks at the status


async def under_load_until_killed(server: ServerProcess, workers: list[LoggedWorker], seconds: float) -> None:
    training = [asyncio.create_task(worker.train_until_gone()) for worker in workers]
    await asyncio.sleep(seconds)
    await kill(server)
    await asyncio.wait_for(asyncio.gather(*training), 60)
    for worker in workers:
        await worker.close()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("model", "shares", "each_transport_and_tls"),
    [
        # A server with the small model is killed in the tests below, too.
        pytest.param(*one.values, id=one.id, marks=[*one.marks, *(pytest.mark.long,) * (one.values[0] is SMALL)])
        for one in EACH_OVER_TRANSPORTS
    ],
    indirect=["each_transport_and_tls"],
)
async def test_kill_at_level_commit_loses_no_acknowledged_commit(
    tmp_path: Path, each_transport_and_tls: str, model: Model, shares: bool, figures: Figures
) -> None:
    history, workers = crew(model, shares=shares)
    draw = random.Random(1)
    kills = count(2, 100)
    settings = {
        "durability": "commit",
        "checkpoint_interval": 0.7,
        "shared_memory_socket": str(tmp_path / "memory"),
    }
    acknowledged_lost = 0
    for _ in range(kills):
        server = await start(tmp_path / "data", **settings)
        recovered = (await server.status()).version.clock
        acknowledged = max((commit.clock for commit in history.commits), default=0)
        acknowledged_lost += sum(1 for commit in history.commits if commit.clock > recovered)
        assert acknowledged_lost == 0, f"clock {recovered} after {acknowledged} was acknowledged"
        await everybody_connects(workers, server.address)
        await under_load_until_killed(server, workers, draw.uniform(0.05, 1.5))
    server = await start(tmp_path / "data", **settings)
    try:
        await everybody_connects(workers, server.address)
        transfer = await server.read(model)
        assert bytes(transfer.payload) == history.rebuild(Deltas(model))
        # What was acknowledged before the crash is told again, as a duplicate, with what is there now.
        last = max(history.commits, key=lambda commit: (commit.worker == workers[0].name, commit.clock))
        repeat = await workers[0].repeat_last(last)
        assert repeat.verdict.duplicate
        assert (repeat.verdict.version.clock, repeat.verdict.version.incarnation) == (last.clock, last.incarnation)
        assert bytes(repeat.reply.payload) == bytes(transfer.payload)
        assert (await server.status()).commits == len(history.commits)
        for worker in workers:
            await worker.train(2)
        assert bytes((await server.read(model)).payload) == history.rebuild(Deltas(model))
    finally:
        for worker in workers:
            await worker.close()
        await kill(server)
    duplicates = sum(worker.duplicates for worker in workers)
    figures(
        f"SIGKILL, commit, {model.parameter_count} parameters{over(shares, each_transport_and_tls)}",
        f"{kills} kills, {len(history.commits)} commits, "
        f"{acknowledged_lost} acknowledged lost, {duplicates} survived unacknowledged, parameters bit-equal",
    )


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_kill_at_level_interval_loses_no_more_than_what_came_after_the_last_checkpoint(
    tmp_path: Path, figures: Figures
) -> None:
    history, workers = crew(SMALL)
    draw = random.Random(2)
    kills = count(2, 200)
    settings = {"durability": "interval", "checkpoint_interval": 0.3}
    told, lost, most = 0, 0, 0
    for number in range(kills + 1):
        server = await start(tmp_path / "data", **settings)
        recovered = (await server.status()).version.clock
        assert recovered >= told, "a checkpoint that the server had told of is not there any more"
        gone = history.forget_after(recovered)
        lost, most = lost + len(gone), max(most, len(gone))
        await everybody_connects(workers, server.address)
        if number % 20 == 1 or number == kills:  # each takes as long as all commits so far
            assert bytes((await server.read(SMALL)).payload) == history.rebuild(Deltas(SMALL))
        history.check_sequences()
        if number == kills:
            await kill(server)
            break
        watching = asyncio.create_task(last_checkpoint_told(server.address))
        await under_load_until_killed(server, workers, draw.uniform(0.1, 1.5))
        told = await watching
    for worker in workers:
        await worker.close()
    figures(
        "SIGKILL, interval of 0.3 s",
        f"{kills} kills, {kills} recovered, {len(history.commits)} commits kept, "
        f"{lost} lost, at most {most} at once, parameters bit-equal",
    )


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("rule", "level"),
    [
        ("delayed-nesterov", "commit"),
        *(
            pytest.param(*one, marks=pytest.mark.long)  # tests/trace/test_replay.py replays every rule
            for one in (
                ("fedbuff", "interval"),
                ("gem", "interval"),
                ("gem", "commit"),
                ("gap-aware", "interval"),
                ("fadas", "commit"),
                ("ace", "commit"),
                ("ormo", "interval"),
                ("ringmaster-lmo", "commit"),
            )
        ),
    ],
)
async def test_a_trace_that_was_kept_over_kills_gives_the_same_parameters(
    tmp_path: Path, rule: str, level: str, figures: Figures
) -> None:
    """And judges each recovery: what a server came back with is what the trace has at that clock, bit for bit.

    That is theta, and what the rule keeps of the run.
    """
    _, workers = crew(SMALL)
    draw = random.Random(3)
    kills = count(2, 50)
    trace = tmp_path / "run.trace"
    settings = {"durability": level, "checkpoint_interval": 0.3, "record": str(trace)}
    if rule == "gem":
        settings |= {"weight_decay": 0.2}
    settings |= {"rule": rule, "eta_schedule": "cosine:3000"}
    for _ in range(kills):
        server = await start(tmp_path / "data", **settings)
        await everybody_connects(workers, server.address)
        await under_load_until_killed(server, workers, draw.uniform(0.1, 1.5))
        for worker in workers:
            worker.pending = None  # what became of it is for other tests
    server = await start(tmp_path / "data", **settings)
    ended = bytes((await server.read(SMALL)).payload)
    server.process.terminate()
    assert await asyncio.wait_for(server.process.wait(), 30) == 0
    await server.close()
    found = replay(trace)
    assert SMALL.encode(Values(found.parameters, found.buffers)) == ended
    assert (found.starts, found.compared_starts, found.compared_end) == (kills + 1, kills, True)
    assert (found.missing, found.torn_at) == (0, None)
    if found.rule.kept_vectors:
        events = [record.event for record in read_records(map_file(trace))]
        recovered = [event for event in events if event["event"] == "parameters" and event["clock"] > 1]
        assert {event["rule_state"]["vectors"] for event in recovered} == {found.rule.kept_vectors}
    figures(
        f"SIGKILL while a trace is kept, {level}, {rule}",
        f"{kills} kills, {found.commits} commits in the trace, {found.lost} of them lost, {found.resets} resets; each "
        "of the recovered states and the end are bit-equal to the replay's",
    )


async def last_checkpoint_told(address: str) -> int:
    """The clock of the last checkpoint that the server told of before it went."""
    endpoint, clock = Endpoint(address), 0
    try:
        while True:
            clock = (await endpoint.status()).checkpoint.version.clock or clock
            await asyncio.sleep(LOOK_SECONDS)
    except grpc.aio.AioRpcError:
        return clock
    finally:
        await endpoint.close()
