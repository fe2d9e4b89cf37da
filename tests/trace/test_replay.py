"""What a real server recorded comes out again, bit for bit; what was changed in the file does not pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gem_server.recorder import RECORDED_SETTINGS
from gem_simulator import SimulationError, read_recorded
from gemps.v1 import run_pb2

from gem_core import rule_names
from gem_trace import Replayed, ReplayError, read_records, replay
from gem_trace.files import map_file
from gem_trace.format import digest, encode
from tests.waiting import eventually_async
from tests.wire.conftest import Serve
from tests.wire.model import BFLOAT16, INT4_BLOCK, LARGE, SMALL, Model, Values
from tests.wire.refusals import refused
from tests.wire.serving import Serving
from tests.wire.worker import RawWorker, all_of

Change = Callable[[dict[str, Any], bytearray], None]


def payload(model: Model, found: Replayed) -> bytes:
    return model.encode(Values(found.parameters, found.buffers))


async def work(workers: list[RawWorker], commits: int) -> None:
    async def train(worker: RawWorker, number: int) -> None:
        for step in range(commits):
            await worker.commit(worker.delta(1000 * number + step))

    await all_of(*(train(worker, number) for number, worker in enumerate(workers)))


async def recorded(serve: Serve, path: Path, model: Model = SMALL, **settings: Any) -> bytes:
    """A run of three workers; returns the payload that it ended with."""
    serving = await serve(record=path, **settings)
    workers = await serving.training(3, model)
    await work(workers, 4)
    for worker in workers:
        await work([worker], 1)
    await workers[0].pull()  # between its commits, and after others': the snapshot is refreshed, the moment stays
    await work(workers[:2], 4)
    await workers[2].leave()
    await work(workers[:2], 2)
    found = bytes((await serving.read(model)).payload)
    await serving.stop()
    return found


@pytest.mark.parametrize("rule", rule_names())
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["small", "large"])
async def test_replay_is_bit_equal(serve: Serve, tmp_path: Path, model: Model, rule: str) -> None:
    path = tmp_path / "run.trace"
    settings = {"kappa": 2.0, "momentum": 0.5} if rule == "gem" else {}
    ended = await recorded(serve, path, model, rule=rule, rule_settings=settings)
    clocks: list[int] = []
    found = replay(path, on_commit=clocks.append)
    assert payload(model, found) == ended
    assert found.compared_end
    assert clocks == list(range(2, 29))
    assert (found.clock, found.commits, found.starts, found.sessions, found.resets) == (28, 27, 1, 3, 0)
    assert found.rule.name == rule
    assert settings.items() <= dict(found.rule.settings).items()


async def test_replay_with_weight_decay_and_a_schedule_is_bit_equal(serve: Serve, tmp_path: Path) -> None:
    path, schedule = tmp_path / "run.trace", {"eta_schedule": "warmup:5,cosine:30"}
    ended = await recorded(serve, path, LARGE, rule="gem", weight_decay=0.5, **schedule)
    found = replay(path)
    assert payload(LARGE, found) == ended
    assert (found.compared_end, found.rule.settings["weight_decay"]) == (True, 0.5)
    events = [record.event for record in read_records(map_file(path))]
    assert len({event["eta"] for event in events if event["event"] == "committed"}) > 10


def adamw(model: Model) -> run_pb2.Recipe:
    """Return a recipe with two parameter groups that decay differently. Every second tensor is in the second group."""
    count = sum(tensor.kind == "parameter" for tensor in model.tensors)
    groups = [run_pb2.RecipeGroup(settings={"lr": 0.1, "weight_decay": decay}) for decay in (0.1, 0.0)]
    return run_pb2.Recipe(
        kind="rms", optimizer="AdamW", groups=groups, group_of_parameter=[number % 2 for number in range(count)]
    )


async def by_recipe(workers: list[RawWorker], steps: range) -> float:
    """Commits in turn, with rates and decays of their own, every fifth without decays. Returns the progress."""
    for step in steps:
        worker, eta = workers[step % len(workers)], 0.1 / (1 + step)
        rates = {"eta": eta, "decays": [eta / 3, eta / 7] if step % 5 else []}
        progress: float = (await worker.commit(worker.delta(step), **rates)).verdict.progress
    return progress


@pytest.mark.parametrize("durability", ["interval", "commit"])
async def test_replay_of_commits_with_rates_of_their_own_is_bit_equal_over_a_restart(
    serve: Serve, tmp_path: Path, durability: str
) -> None:
    path = tmp_path / "run.trace"
    settings = {"rule": "auto", "data_dir": tmp_path / "data", "resume": True, "durability": durability}
    serving = await serve(record=path, **settings)
    workers = await serving.training(2, LARGE, recipe=adamw(LARGE))
    assert await by_recipe(workers, range(8)) == 4
    ended = bytes((await serving.read(LARGE)).payload)
    await serving.stop()

    serving = await serve(record=path, **settings)
    assert bytes((await serving.read(LARGE)).payload) == ended
    workers = await serving.training(2, LARGE, recipe=adamw(LARGE))
    assert [worker.membership.progress for worker in workers] == [4, 4]
    assert await by_recipe(workers, range(8, 14)) == 7
    ended = bytes((await serving.read(LARGE)).payload)
    await serving.stop()

    found = replay(path)
    assert payload(LARGE, found) == ended
    assert (found.commits, found.compared_starts, found.compared_end) == (14, 1, True)
    commits = [record.event for record in read_records(map_file(path)) if record.event["event"] == "committed"]
    assert [event["eta"] for event in commits] == [0.1 / (1 + step) for step in range(14)]
    with pytest.raises(SimulationError, match=f"of a script's optimizer.*gemps replay {path}"):
        read_recorded(path)
    assert [number for number, event in enumerate(commits) if "decays" not in event] == [0, 5, 10]
    for change in (lambda event, body: event.update(decays=[0.2, 0.0]), lambda event, body: event.pop("decays")):
        rewrite(path, lambda event, body, change=change: change(event, body) if event.get("clock") == 14 else None)
        with pytest.raises(ReplayError, match=r"clock 15 .*: \w+ is"):
            replay(path)


async def test_the_start_of_a_run_whose_first_worker_decides_is_recorded_when_it_has(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace"
    serving = await serve(record=path, rule="auto")
    workers = await serving.training(2, features=["direction-auto"])
    await work(workers, 3)
    ended = bytes((await serving.read(SMALL)).payload)
    await serving.stop()
    events = [record.event for record in read_records(map_file(path))]
    assert [event["event"] for event in events[:3]] == ["started", "joined", "joined"]
    assert events[0]["rule"] == "gem"
    assert (events[0]["settings"]["direction"], events[0]["settings"]["eta"]) == ("auto", 0.002)
    assert payload(SMALL, replay(path)) == ended


async def test_events_are_in_the_order_in_which_they_happened(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    await recorded(serve, path, limits={"staging_buffers": 3})
    records = list(read_records(map_file(path)))
    names = [record.event["event"] for record in records]
    assert names[:4] == ["started", "joined", "joined", "joined"]
    assert (names[4], names[-1]) == ("parameters", "ended")
    started = records[0].event["settings"]
    assert started.keys() == RECORDED_SETTINGS | {"staging_buffers"}
    assert started["staging_buffers"] == 3
    assert names.count("left") == 1
    assert names.count("pulled") == 4
    times = [record.event["at"] for record in records]
    assert times == sorted(times)
    (commit, *_) = [record.event for record in records if record.event["event"] == "committed"]
    assert 0 <= commit["queued_at"] <= commit["at"]
    assert "session_id" not in path.read_bytes().decode("latin-1")


async def test_a_trace_without_newer_fields_is_replayed_as_before(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    ended = await recorded(serve, path)

    def without_eta(event: dict[str, Any], body: bytearray) -> None:
        del event["eta"]

    rewrite(path, of(without_eta, "committed"))
    assert payload(SMALL, replay(path)) == ended


async def test_a_trace_of_a_version_that_had_preconditioners_is_read_unless_the_run_had_one(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace"
    ended = await recorded(serve, path)

    def preconditioned_by(kind: str) -> Change:
        return of(lambda event, body: event.update(precondition=kind), "started")

    rewrite(path, preconditioned_by("none"))
    assert payload(SMALL, replay(path)) == ended
    rewrite(path, preconditioned_by("averaged-rms"))
    said = "its run had --precondition averaged-rms, which gemps 0.1.0 does not have: read it with the version that"
    with pytest.raises(ReplayError, match=said):
        replay(path)
    with pytest.raises(SimulationError, match=said):
        read_recorded(path)


async def test_a_trace_of_a_direction_that_is_gone_is_replayed_and_not_followed(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    ended = await recorded(serve, path)
    rewrite(path, of(lambda event, body: event["settings"].update(direction="spectral"), "started"))
    assert payload(SMALL, replay(path)) == ended
    with pytest.raises(SimulationError, match=r"direction spectral, which is gone.*gemps replay"):
        read_recorded(path)


@pytest.mark.parametrize("wire_type", [BFLOAT16, INT4_BLOCK])
async def test_deltas_that_travelled_rounded_are_kept_as_they_were_applied(
    serve: Serve, tmp_path: Path, wire_type: int
) -> None:
    serving = await serve(record=tmp_path / "run.trace")
    workers = await serving.training(2, delta_wire_types=[wire_type], parameter_wire_types=[BFLOAT16])
    await work(workers, 4)
    exact = serving.server.central.parameters.copy()
    await serving.stop()
    found = replay(tmp_path / "run.trace")
    assert found.parameters.tobytes() == exact.tobytes()


async def test_a_session_that_changes_its_wire_types_is_replayed_and_cannot_be_followed(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace"
    serving = await serve(record=path)
    (worker,) = await serving.training(1)
    for wire_type in (BFLOAT16, INT4_BLOCK):
        await worker.join(delta_wire_types=[wire_type], parameter_wire_types=[BFLOAT16])
        await worker.commit_on_new_stream(worker.prepare(worker.delta(worker.sequence)))
    exact = serving.server.central.parameters.copy()
    await serving.stop()
    found = replay(path)
    assert found.parameters.tobytes() == exact.tobytes()
    assert (found.sessions, found.resets) == (1, 0)
    names = [record.event["event"] for record in read_records(map_file(path))]
    assert names.count("wire-types") == 2
    with pytest.raises(SimulationError, match=r"changed its wire types during the run \(record with --network fast\)"):
        read_recorded(path)


async def test_a_session_that_expires_begins_again_with_a_moment_of_0(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(record=tmp_path / "run.trace", session_timeout=0.2)
    workers = await serving.training(2)
    for _ in range(2):
        for worker in workers:
            await worker.join()
            await worker.pull()
            await worker.commit_on_new_stream(worker.prepare(worker.delta(worker.sequence)))
        await eventually_async(lambda: not len(serving.server.sessions))
    ended = bytes((await serving.read(SMALL)).payload)
    await serving.stop()
    found = replay(tmp_path / "run.trace")
    assert payload(SMALL, found) == ended
    assert (found.sessions, found.resets, len(found.workers)) == (4, 2, 2)
    assert found.commits == 4


async def test_a_run_that_is_resumed_goes_on_in_its_trace(serve: Serve, tmp_path: Path) -> None:
    path, settings = tmp_path / "run.trace", {"data_dir": tmp_path / "data", "resume": True}
    for number in range(3):
        serving = await serve(record=path, eta=0.1 + number, **settings)
        await work(await serving.training(2), 4)
        ended = bytes((await serving.read(SMALL)).payload)
        await serving.stop()
        found = replay(path)
        assert payload(SMALL, found) == ended
        assert (found.starts, found.compared_starts, found.compared_end) == (number + 1, number, True)
        assert (found.commits, found.lost, found.resets) == (8 * (number + 1), 0, 2 * number)


async def test_commits_that_a_server_did_not_have_any_more_are_told(serve: Serve, tmp_path: Path) -> None:
    """This happens after a crash at level interval, and after an earlier backup was restored."""
    path, settings = tmp_path / "run.trace", {"data_dir": tmp_path / "data", "resume": True, "checkpoint_interval": 0}
    serving = await serve(record=path, **settings)
    workers = await serving.training(1)
    await work(workers, 3)
    await serving.stop()
    early = (tmp_path / "data" / "latest").readlink()
    for kept in (early, early):
        serving = await serve(record=path, **settings)
        await work(await serving.training(1), 5)
        ended = bytes((await serving.read(SMALL)).payload)
        await serving.stop()
        newest = (tmp_path / "data" / "latest").readlink()
        (tmp_path / "data" / "latest").unlink()
        (tmp_path / "data" / "latest").symlink_to(kept)
    found = replay(path)
    assert payload(SMALL, found) == ended
    assert (found.commits, found.lost, found.clock, found.compared_starts) == (13, 5, 9, 2)
    assert newest != early


async def test_a_trace_that_was_not_kept_for_a_while_says_so(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, settings = tmp_path / "run.trace", {"data_dir": tmp_path / "data", "resume": True}
    for record in (path, None, path):
        serving = await serve(record=record, **settings)
        await work(await serving.training(1), 3)
        ended = bytes((await serving.read(SMALL)).payload)
        await serving.stop()
    found = replay(path)
    assert payload(SMALL, found) == ended
    assert (found.commits, found.missing, found.compared_starts) == (6, 3, 0)
    assert any("ends at clock 4, and the run is at clock 7" in record.getMessage() for record in caplog.records)


async def test_a_clock_of_its_past_can_be_compared(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    serving = await serve(record=path)
    (worker,) = await serving.training(1)
    await work([worker], 2)
    early = serving.server.central.parameters.copy(), serving.server.central.buffers.joined()
    await work([worker], 2)
    await serving.stop()
    replay(path, against=(3, digest(*early)))
    with pytest.raises(ReplayError, match="at clock 4 it has other parameters"):
        replay(path, against=(4, digest(*early)))
    with pytest.raises(ReplayError, match="clock 9, with which to compare, is not in it"):
        replay(path, against=(9, digest(*early)))


async def test_a_trace_of_another_run_is_refused_and_kept(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    await recorded(serve, path)
    before = path.read_bytes()
    await recorded(serve, tmp_path / "other.trace", data_dir=tmp_path / "of another run")  # of the same model
    unlike = (
        {},
        {"data_dir": tmp_path / "new", "resume": True},
        {"data_dir": tmp_path / "of another run", "resume": True},
    )
    for settings in unlike:
        with pytest.raises(Exception, match="is the trace of a run, and that one is not resumed here"):
            await serve(record=path, **settings)
        assert path.read_bytes() == before


async def test_a_trace_that_cannot_be_written_ends_and_training_goes_on(
    serve: Serve, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serving = await serve(record=small_disk / "run.trace")
    workers = await serving.training(2)
    await work(workers, 10)
    assert (await serving.status()).commits == 20
    await serving.stop()
    (line,) = [record.getMessage() for record in caplog.records if "ends here" in record.getMessage()]
    assert "training continues" in line
    found = replay(small_disk / "run.trace")
    assert 1 <= found.clock < 21
    assert not found.compared_end


async def test_refused_commits_leave_no_trace(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(record=tmp_path / "run.trace")
    (worker,) = await serving.training(1)
    values = worker.delta(1)
    values.parameters[3] = np.nan
    await refused(worker.commit(values), "BAD_VALUE")
    ended = bytes((await serving.read(SMALL)).payload)
    await serving.stop()
    found = replay(tmp_path / "run.trace")
    assert (found.commits, payload(SMALL, found)) == (0, ended)


# --- what was changed in the file, with right checksums


def rewrite(path: Path, change: Change) -> None:
    """Write every record anew, after `change` was called with its event and payload."""
    changed = []
    for record in read_records(map_file(path)):
        event, body = dict(record.event), bytearray(record.payload)
        change(event, body)
        if event:
            changed += [bytes(piece) for piece in encode(event, [memoryview(body)])]
    path.write_bytes(b"".join(changed))


def of(change: Change, name: str, clock: int | None = None) -> Change:
    """Change only events of this name (and clock)."""

    def apply(event: dict[str, Any], body: bytearray) -> None:
        if event["event"] == name and clock in (None, event.get("clock")):
            change(event, body)

    return apply


def at_5(change: Change) -> Change:
    return of(change, "committed", 5)


def other_value(event: dict[str, Any], body: bytearray) -> None:
    """Change the value of the first element. A single changed bit could vanish in the rounding of the next update."""
    body[:4] = np.float32(123).tobytes()


def drop(event: dict[str, Any], body: bytearray) -> None:
    event.clear()


def another_base(event: dict[str, Any], body: bytearray) -> None:
    event["staleness"] += event["base"]
    event["base"] = 0


def of_another(event: dict[str, Any], body: bytearray) -> None:
    event["session"] = event["session"] % 3 + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (at_5(lambda event, body: body.__setitem__(2, body[2] ^ 0x80)), r"clock 5 .*: \w+ is .* was"),
        (of(other_value, "parameters"), r"\w+ is .* was|ended at clock 28 with other parameters"),
        (
            of(lambda event, body: event.update(digest="0" * 64), "ended"),
            "ended at clock 28 with other parameters than those of the replay",
        ),
        (at_5(drop), "clock 6 .* does not follow"),
        (at_5(of_another), r"clock 5 .*(does not follow|sequence)"),
        (at_5(lambda event, body: body.pop()), "the delta has another size"),
        (at_5(lambda event, body: event.update(staleness=99)), "does not follow"),
        (at_5(lambda event, body: event.update(base=event["base"] - 1)), "does not follow"),
        (at_5(another_base), "clock 5 .* does not hold clock 0"),
        (at_5(lambda event, body: event["statistics"].update(mean_pi=0.123)), "mean_pi is .* was 0.123"),
        (at_5(lambda event, body: event.update(event="imagined")), "'imagined' .* is not known"),
        (at_5(lambda event, body: event.pop("sequence")), "not a trace of this version"),
        (of(lambda event, body: event.update(rule="downpour", rule_settings={}), "started"), r"clock 2 .*: \w+ is"),
        (of(lambda event, body: event.update(format="gemps-trace-0"), "started"), "its format is gemps-trace-0"),
    ],
)
async def test_what_was_changed_does_not_pass(serve: Serve, tmp_path: Path, change: Change, words: str) -> None:
    path = tmp_path / "run.trace"
    await recorded(serve, path)
    replay(path)
    rewrite(path, change)
    with pytest.raises(ReplayError, match=words):
        replay(path)


async def test_damage_is_refused_with_its_offset(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    await recorded(serve, path)
    hit = next(record for record in read_records(map_file(path)) if record.event.get("clock") == 7)
    data = bytearray(path.read_bytes())
    data[hit.end - 70] ^= 4
    path.write_bytes(data)
    with pytest.raises(ReplayError, match=f"damaged at offset {hit.offset}"):
        replay(path)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for text in ("", "notes " * 50):
        (tmp_path / "notes").write_text(text)
        with pytest.raises(ReplayError, match="is not a trace of gemps"):
            replay(tmp_path / "notes")


async def test_a_run_without_parameters_has_nothing_to_replay(serve: Serve, tmp_path: Path) -> None:
    serving: Serving = await serve(record=tmp_path / "run.trace")
    await serving.joined()
    await serving.stop()
    with pytest.raises(ReplayError, match="nothing to replay"):
        replay(tmp_path / "run.trace")
