"""Checkpoints: whole or not there, exact, and loadable by name."""

import json
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
from gem_server.durability import checkpoint, checkpointer, run_record
from gem_server.durability.checkpoint import Checkpoint
from gem_server.durability.files import Files
from gem_server.errors import StartupError
from gem_server.server import Server
from gem_server.settings import ServerSettings
from gem_server.state.central_variable import CentralVariable
from gem_server.state.ledger import Content, Ledger, Verdict, record
from gem_server.state.run import Budget, RunState
from gem_server.state.workers import Workers
from gem_server.telemetry.run_totals import RunTotals
from gem_server.version import Version
from safetensors import safe_open

from gem_core import ElementType, Layout, Statistics, TensorKind, TensorSpec
from tests.waiting import PATIENCE, eventually_async

from .builders import run

LAYOUT = Layout(
    [
        TensorSpec("embed", (3, 2), ElementType.FLOAT32, TensorKind.PARAMETER, ("head",)),
        TensorSpec("double", (2,), ElementType.FLOAT64, TensorKind.PARAMETER),
        TensorSpec("half", (5,), ElementType.FLOAT16, TensorKind.PARAMETER),
        TensorSpec("brain", (5,), ElementType.BFLOAT16, TensorKind.PARAMETER),
        TensorSpec("nothing", (0, 4), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("flag", (3,), ElementType.BOOL, TensorKind.BUFFER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
        TensorSpec("frozen", (2,), ElementType.OTHER, TensorKind.FROZEN, sha256=bytes(32)),
    ]
)


def sample(clock: int = 7) -> Checkpoint:
    random = np.random.default_rng(clock)
    parameters = random.standard_normal(LAYOUT.parameter_count).astype(np.float32)
    buffers = b"\1\0\1" + np.int64(-5).tobytes()
    vectors = tuple(random.standard_normal((2, LAYOUT.parameter_count)).astype(np.float32))
    return Checkpoint(LAYOUT, clock, parameters, buffers, {"seed": 3}, vectors)


def test_what_was_written_is_read_back_bit_for_bit_in_every_element_type(tmp_path: Path) -> None:
    written = sample()
    checkpoint.write_checkpoint(tmp_path, written)
    back = checkpoint.read_latest(tmp_path)
    assert back is not None
    assert back.parameters.tobytes() == written.parameters.tobytes()
    assert [one.tobytes() for one in back.rule_vectors] == [one.tobytes() for one in written.rule_vectors]
    assert (back.layout, back.clock, back.buffers, back.state) == (
        written.layout,
        written.clock,
        written.buffers,
        written.state,
    )


def test_model_file_has_every_name_of_the_state_dict_in_the_models_types(tmp_path: Path) -> None:
    written = sample()
    file = checkpoint.write_checkpoint(tmp_path, written) / "model.safetensors"
    with safe_open(file, framework="np") as model:
        assert sorted(model.keys()) == sorted(["embed", "head", "double", "half", "brain", "nothing", "flag", "steps"])
        embed = model.get_tensor("embed")
        assert embed.tobytes() == model.get_tensor("head").tobytes() == written.parameters[:6].tobytes()
        assert embed.shape == (3, 2)
        assert model.get_tensor("double").dtype == np.float64
        assert model.get_tensor("half").tobytes() == written.parameters[8:13].astype(np.float16).tobytes()
        assert model.get_slice("brain").get_dtype() == "BF16"
        assert model.get_tensor("nothing").shape == (0, 4)
        assert model.get_tensor("steps") == -5


def test_bfloat16_parameters_are_rounded_half_to_even(tmp_path: Path) -> None:
    layout = Layout([TensorSpec("w", (4,), ElementType.BFLOAT16, TensorKind.PARAMETER)])
    # 1 + 2^-8 lies halfway between 1 and 1 + 2^-7; 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8 + 2**-20)], np.float32)
    place = checkpoint.write_checkpoint(tmp_path, Checkpoint(layout, 1, values, b"", {}))
    ((_, tensor),) = safetensors.deserialize((place / "model.safetensors").read_bytes())
    raw = tensor["data"]
    assert np.frombuffer(bytes(raw), np.uint16).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF81]


def test_files_are_the_owners_alone_because_the_ledger_holds_secrets(tmp_path: Path) -> None:
    place = checkpoint.write_checkpoint(tmp_path, sample())
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_latest_points_to_the_newest_and_the_one_before_is_kept(tmp_path: Path) -> None:
    places = [checkpoint.write_checkpoint(tmp_path, sample(clock)) for clock in (1, 2, 3, 3)]
    assert (tmp_path / "latest").resolve() == places[-1].resolve()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == sorted(
        place.name for place in places[-2:]
    )


def test_the_one_before_is_kept_whatever_the_files_dates_say(tmp_path: Path) -> None:
    """The machine's clock may have been moved by a day between two checkpoints."""
    places = []
    for clock, days in ((1, 0), (2, 1), (3, 0), (4, -1), (5, 0)):
        places.append(checkpoint.write_checkpoint(tmp_path, sample(clock)))
        date = time.time() + 86_400 * days
        os.utime(places[-1], (date, date))
        assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {place.name for place in places[-2:]}


def test_failed_write_leaves_the_older_checkpoint_and_no_rubbish(tmp_path: Path) -> None:
    old = checkpoint.write_checkpoint(tmp_path, sample(1))

    class Full(Files):
        def sync(self, path: Path) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="space"):
        checkpoint.write_checkpoint(tmp_path, sample(2), Full())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [old.name]
    back = checkpoint.read_latest(tmp_path)
    assert back is not None
    assert back.clock == 1


def test_what_a_killed_server_was_writing_is_removed(tmp_path: Path) -> None:
    class Killed(Files):
        def rename(self, source: Path, target: Path) -> None:
            raise KeyboardInterrupt

        def remove(self, path: Path) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        checkpoint.write_checkpoint(tmp_path, sample(), Killed())
    (tmp_path / ".latest").symlink_to("elsewhere")
    written = checkpoint.write_checkpoint(tmp_path, sample())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [written.name]
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "latest"}


def test_checkpoint_without_vectors_of_a_rule_has_no_file_of_them(tmp_path: Path) -> None:
    place = checkpoint.write_checkpoint(tmp_path, replace(sample(), rule_vectors=()))
    assert {path.name for path in place.iterdir()} == {
        *("state.json", "model.safetensors", "float32.safetensors", "checksums.json")
    }
    back = checkpoint.read_latest(tmp_path)
    assert back is not None
    assert back.rule_vectors == ()


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.read_latest(tmp_path) is None


@pytest.mark.parametrize(
    "file", ["state.json", "model.safetensors", "float32.safetensors", "rule.safetensors", "checksums.json"]
)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "longer"])
def test_damaged_checkpoint_is_refused_with_its_place(tmp_path: Path, file: str, damage: str) -> None:
    place = checkpoint.write_checkpoint(tmp_path, sample())
    victim = place / file
    if damage == "missing":
        victim.unlink()
    else:
        whole = victim.read_bytes()
        victim.write_bytes({"empty": b"", "cut": whole[:-3], "longer": whole + b"0"}[damage])
    with pytest.raises(StartupError, match=place.name):
        checkpoint.read_latest(tmp_path)


def test_bit_flipped_anywhere_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    """Every byte of every file, one bit each."""
    place = checkpoint.write_checkpoint(tmp_path, sample())
    for file in sorted(place.iterdir()):
        whole = file.read_bytes()
        for at in range(len(whole)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            with pytest.raises(StartupError, match=rf"{file.name} is damaged in the 1024 KiB from offset 0"):
                checkpoint.read_latest(tmp_path)
        file.write_bytes(whole)
    assert checkpoint.read_latest(tmp_path) is not None


def test_offset_of_the_damage_is_that_of_its_mebibyte(tmp_path: Path) -> None:
    layout = Layout([TensorSpec("w", (600_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    place = checkpoint.write_checkpoint(tmp_path, Checkpoint(layout, 1, np.zeros(600_000, np.float32), b"", {}))
    file = place / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:2_000_000] + b"\1" + whole[2_000_001:])
    with pytest.raises(StartupError, match="offset 1048576"):
        checkpoint.read_latest(tmp_path)


def test_checkpoint_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", "gemps-checkpoint-99")
    checkpoint.write_checkpoint(tmp_path, sample())
    monkeypatch.undo()
    with pytest.raises(StartupError, match="gemps-checkpoint-2"):
        checkpoint.read_latest(tmp_path)


def test_run_workers_and_ledger_come_back_from_json() -> None:
    the_run, workers, ledger = run(Budget(steps=2)), Workers(10), Ledger(10)
    the_run.consider_start(True, 1)
    worker = workers.enlist("w", set())
    worker.limit = 2
    entry = ledger.open_entry(b"s" * 16, "w", set())
    statistics = Statistics(0.5, 0.25, 0.125, 1.0, 2.0, 3.0, 4.0)
    for sequence in (1, 2):
        the_run.reserve(worker)
        the_run.applied(worker)
        verdict = Verdict(sequence, Version(9, sequence + 1), 3, statistics, RunState.TRAINING, 0.05)
        record(entry, Content(1, 32, 77), verdict)
    totals = RunTotals(2, 6, 1.0, 0.5, 0.25)
    saved = json.loads(json.dumps(run_record.state_record(the_run, workers, ledger, 5, totals)))
    assert run_record.saved_totals(saved) == totals
    run2, workers2, ledger2 = run(Budget(steps=2)), Workers(10), Ledger(10)
    run_record.restore(saved, run2, workers2, ledger2)
    assert (run2.commits, run2.started) == (2, False)  # its workers have to come back first
    back = workers2.get("w")
    assert back is not None
    assert (back.rank, back.commits, back.done) == (0, 2, True)
    assert ledger2.entries[b"s" * 16] == entry
    assert workers2.enlist("new", set()).rank == 1


@pytest.mark.parametrize(("budget", "state"), [(Budget(commits=2), "finished"), (Budget(commits=3), "waiting")])
def test_finished_run_stays_finished_unless_its_budget_was_raised(budget: Budget, state: str) -> None:
    the_run = run(Budget(commits=2))
    the_run.finish("2 commits")
    saved = json.loads(json.dumps(run_record.state_record(the_run, Workers(10), Ledger(10), 0, RunTotals())))
    resumed = run(budget)
    run_record.restore(saved, resumed, Workers(10), Ledger(10))
    assert resumed.state.value == state


async def test_checkpoints_are_written_after_each_interval_and_at_once_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new is not written again."""
    looks = 0
    version = CentralVariable.version.fget
    assert version is not None

    def look(central: CentralVariable) -> Version:
        """At the end of each interval."""
        nonlocal looks
        looks += 1
        return version(central)

    monkeypatch.setattr(CentralVariable, "version", property(look))
    server = Server(ServerSettings(bind="127.0.0.1:0", data_dir=tmp_path, checkpoint_interval=0.05))
    await server.start()
    try:
        writer = server.persistence.checkpointer
        assert writer is not None
        server.central.bind(LAYOUT, sample().parameters, sample().buffers)
        first = await eventually_async(lambda: writer.newest)
        written_at, looks = writer.written_at, 0
        await eventually_async(lambda: looks > 4)
        assert (writer.newest, writer.written_at) == (first, written_at)
        server.central.clock += 1
        await eventually_async(lambda: writer.newest != first)
    finally:
        await server.stop()


async def test_the_first_commits_are_written_long_before_a_long_interval_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "FIRST_INTERVAL_SECONDS", 0.05)
    server = Server(ServerSettings(bind="127.0.0.1:0", data_dir=tmp_path, checkpoint_interval=3600))
    await server.start()
    try:
        server.central.bind(LAYOUT, sample().parameters, sample().buffers)
        server.persistence.soon()  # as for the first parameters
        first = await eventually_async(lambda: checkpoint.read_latest(tmp_path))
        assert first is not None
        server.central.clock += 7
        saved = await eventually_async(
            lambda: found if (found := checkpoint.read_latest(tmp_path)) and found.clock > first.clock else None
        )
        assert saved is not None
        assert saved.clock == first.clock + 7
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("seconds", "newest", "clock_at_start", "expected"),
    [
        (60.0, None, 1, 10.0),
        (60.0, 1, 1, 10.0),  # the first parameters alone
        (60.0, 2, 1, 60.0),
        (60.0, 700, 700, 10.0),  # resumed at clock 700
        (60.0, 701, 700, 60.0),
        (3.0, 1, 1, 3.0),
        (0.0, 1, 1, 0.0),
    ],
)
def test_the_first_interval_is_short_until_a_checkpoint_has_commits_of_this_process(
    seconds: float, newest: int | None, clock_at_start: int, expected: float
) -> None:
    version = None if newest is None else Version(5, newest)
    assert checkpointer.interval_until_next(seconds, newest=version, clock_at_start=clock_at_start) == expected


async def test_finished_run_is_written_at_once_without_an_interval(tmp_path: Path) -> None:
    server = Server(ServerSettings(bind="127.0.0.1:0", data_dir=tmp_path, checkpoint_interval=0))
    await server.start()
    try:
        server.central.bind(LAYOUT, sample().parameters, sample().buffers)
        server.run.finish("enough")
        saved = await eventually_async(lambda: checkpoint.read_latest(tmp_path))
        assert saved is not None
        assert saved.state["finished_because"] == "enough"
    finally:
        await server.stop()


async def test_run_that_finishes_while_a_checkpoint_is_written_is_stored_as_finished(tmp_path: Path) -> None:
    class SlowDisk(Files):
        may_rename = threading.Event()

        def rename(self, source: Path, target: Path) -> None:
            self.may_rename.wait(PATIENCE)
            super().rename(source, target)

    server = Server(ServerSettings(bind="127.0.0.1:0", data_dir=tmp_path, checkpoint_interval=0.05), files=SlowDisk())
    await server.start()
    try:
        server.central.bind(LAYOUT, sample().parameters, sample().buffers)
        unfinished = tmp_path / "checkpoints" / ".unfinished" / "checksums.json"
        await eventually_async(unfinished.exists)
        server.run.finish("enough")
        SlowDisk.may_rename.set()
        await eventually_async(lambda: finished_because(tmp_path) == "enough")
    finally:
        SlowDisk.may_rename.set()
        await server.stop()


def finished_because(data_dir: Path) -> object:
    saved = checkpoint.read_latest(data_dir)
    return saved and saved.state["finished_because"]


def test_interval_needs_a_directory_only_when_it_was_asked_for() -> None:
    assert ServerSettings().checkpoint_interval > 0
    with pytest.raises(ValueError, match="--data-dir"):
        ServerSettings(checkpoint_interval=5)
