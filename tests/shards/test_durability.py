"""Data directories of shards: common checkpoints, and resumption with another number of shards."""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
from gem_server.durability import log, model_files, recovery, shard_files
from gem_server.durability.files import Files
from gem_server.errors import RefusedError, StartupError
from gem_server.shards.agreement import PrimaryAgreement, SecondaryAgreement
from gem_server.shards.operations import CheckpointCut, CheckpointNeeded, CheckpointWritten, Operation, Report
from gem_server.shards.primary import PrimaryOrder
from gem_worker.client import Observer, ServerRefusedError
from safetensors.numpy import load_file

from gem_core.registry import BUILT_IN
from tests.client.real_server import RealServer
from tests.shards.group import Float32, Worker, free_port, serving

WORKERS, ROUNDS = 3, 4
CASES = [(rule, level) for rule in BUILT_IN for level in ("commit", "interval")]
QUICK = [*CASES[::7], ("delayed-nesterov", "commit")]
CASES = [pytest.param(*one, marks=() if one in QUICK else pytest.mark.long) for one in CASES]


def train(shards: int, folder: Path, first: int, *, crash: bool = False, **settings: object) -> Float32:
    """Train workers in turn, in rounds `first` to `first` + ROUNDS. Returns theta.

    With `crash`, `folder` then has what was on the disk at the last commit, as if all servers had been killed then.
    """
    with serving(shards, folder, **settings) as group:
        workers = [Worker(group.address, number) for number in range(WORKERS)]
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.pull()
            for _ in range(first):
                worker.delta()
        for _ in range(ROUNDS):
            for worker in workers:
                assert worker.commit().applied
        for worker in workers:
            worker.end()
        theta = group.parameters()
        image = folder.with_name(f"{folder.name}-image")
        if crash:
            shutil.copytree(folder, image, symlinks=True)
    if crash:
        shutil.rmtree(folder)
        image.rename(folder)
    return theta


def data_dirs(folder: Path, shards: int) -> list[Path]:
    return [folder / str(index) for index in range(shards)]


@pytest.mark.parametrize(("rule", "level"), CASES)
def test_other_numbers_of_shards_go_on_bit_for_bit(rule: str, level: str, tmp_path: Path) -> None:
    """Compare one server, restarted three times, with 1, 3, 2 and 1 servers, each group resuming from the last.

    At `interval` they are stopped, at `commit` killed.
    """
    settings: dict[str, Any] = {"rule": rule, "durability": level, "resume": True, "crash": level == "commit"}
    for part in range(4):
        expected = train(1, tmp_path / "whole", part * ROUNDS, **settings)
    train(1, tmp_path / "a", 0, **settings)
    shard_files.split(tmp_path / "a" / "0", 3, tmp_path / "b")
    train(3, tmp_path / "b", ROUNDS, **settings)
    shard_files.merge(data_dirs(tmp_path / "b", 3), tmp_path / "merged")
    shard_files.split(tmp_path / "merged", 2, tmp_path / "c")
    train(2, tmp_path / "c", 2 * ROUNDS, **settings)
    shard_files.merge(data_dirs(tmp_path / "c", 2), tmp_path / "d" / "0")
    found = train(1, tmp_path / "d", 3 * ROUNDS, **settings)
    assert np.array_equal(found, expected)


def test_model_in_several_files(tmp_path: Path) -> None:
    train(2, tmp_path / "run", 0, rule="downpour", durability="interval")
    folders = [str(one) for one in data_dirs(tmp_path / "run", 2)]
    command = [sys.executable, "-m", "gem_cli", "shards", "merge", *folders, "--output", str(tmp_path / "whole")]
    subprocess.run([*command, "--model-folder", str(tmp_path / "one")], check=True, capture_output=True)
    model = tmp_path / "whole/latest/model.safetensors"
    index = model_files.split_model(model, tmp_path / "several", 15_000)
    files = sorted((tmp_path / "several").glob("*.safetensors"))
    assert [file.name for file in files] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    expected = load_file(model)
    tensors = {name: (file.name, tensor) for file in files for name, tensor in load_file(file).items()}
    assert json.loads(index.read_text(encoding="utf-8"))["weight_map"] == {
        name: file for name, (file, _) in tensors.items()
    }
    assert tensors.keys() == expected.keys()
    assert all(np.array_equal(tensors[name][1], tensor) for name, tensor in expected.items())
    assert all(
        np.array_equal(tensor, expected[name])
        for name, tensor in load_file(tmp_path / "one/model-00001-of-00001.safetensors").items()
    )
    with pytest.raises(StartupError, match="choose another folder"):
        model_files.split_model(model, tmp_path / "several")


def test_transformers_reads_a_model_in_several_files(tmp_path: Path) -> None:
    from transformers import AutoModel, GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=99, n_positions=8))
    model.save_pretrained(tmp_path / "one")
    model_files.split_model(tmp_path / "one" / "model.safetensors", tmp_path / "several", 10_000)
    shutil.copy(tmp_path / "one" / "config.json", tmp_path / "several")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 1
    found = AutoModel.from_pretrained(tmp_path / "several").state_dict()
    assert all(found[name].equal(tensor) for name, tensor in model.state_dict().items())


def test_all_shards_write_checkpoints_of_one_clock(tmp_path: Path) -> None:
    train(3, tmp_path, 0, rule="downpour", durability="interval", checkpoint_commits=5)
    found = [recovery.clocks(folder)[0] for folder in data_dirs(tmp_path, 3)]
    assert found[0] == found[1] == found[2]
    assert found[0][-1] == 1 + WORKERS * ROUNDS


async def test_a_checkpoint_that_is_overtaken_while_it_is_written_fails() -> None:
    reports: list[Report] = []
    agreement = SecondaryAgreement(reports.append)
    for number in (1, 2):
        agreement.checkpoint_cut(number)
    agreement.checkpoint_begun(1)
    with pytest.raises(OSError, match="not all shards wrote the checkpoint"):
        await asyncio.wait_for(agreement.wait_checkpoint(), 60)
    agreement.checkpoint_begun(2)
    waiting = asyncio.ensure_future(agreement.wait_checkpoint())
    while not reports:
        await asyncio.sleep(0)
    assert reports == [CheckpointWritten(2, "")]
    agreement.checkpoint_complete(2)
    await asyncio.wait_for(waiting, 60)


async def test_a_report_of_a_checkpoint_given_up_says_nothing_of_the_next_one() -> None:
    """Both may have one clock: that of the end of the run, and that of the server's end."""
    agreement = PrimaryAgreement(2, lambda _: None)
    agreement.cut()
    agreement.cut()
    agreement.checkpoint_written(1, 1, "not all shards wrote the checkpoint")
    agreement.checkpoint_written(1, 2, "")
    await asyncio.wait_for(agreement.wait_checkpoint(), 60)


async def test_no_checkpoint_waits_for_a_shard_that_has_gone() -> None:
    sent: list[Operation] = []
    agreement = PrimaryAgreement(3, sent.append)
    agreement.cut()
    waiting = asyncio.ensure_future(agreement.wait_checkpoint())
    agreement.lost(2)
    with pytest.raises(RefusedError, match="shard 2 has disconnected"):
        await asyncio.wait_for(waiting, 60)
    agreement.cut()
    with pytest.raises(RefusedError, match="shard 2 has disconnected"):
        await asyncio.wait_for(agreement.wait_checkpoint(), 60)
    assert sent == [CheckpointCut(1), CheckpointCut(2)]


def test_a_full_disk_of_one_shard_is_named_to_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, full = Files.rename, [True]

    def rename_if_room(self: Files, source: Path, target: Path) -> None:
        if full and "1" in source.relative_to(tmp_path).parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(self, source, target)

    monkeypatch.setattr(Files, "rename", rename_if_room)
    with (
        serving(2, tmp_path, rule="downpour", durability="interval") as group,
        Observer(group.address) as observer,
        ThreadPoolExecutor(1) as threads,
    ):
        worker = Worker(group.address, 0)
        beginning = threads.submit(worker.begin)
        try:
            group.servers[1].until(lambda: group.servers[1].server.central.clock == 1)
            refused = r"shard 1 could not write the checkpoint \(.*No space left on device\): see to the disk"
            with pytest.raises(ServerRefusedError, match=refused):
                observer.control("checkpoint", "now")
        finally:
            full.clear()
        beginning.result(60)
        worker.end()


@pytest.mark.parametrize("small", [0, 1])
def test_a_full_log_of_any_shard_makes_room_by_a_checkpoint(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an interval nothing else writes one."""
    allocate = Files.allocate

    def allocate_if_room(self: Files, descriptor: int, length: int) -> None:
        file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if file.suffix == ".wal" and file.is_relative_to(tmp_path / str(small)) and length > 700_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(self, descriptor, length)

    monkeypatch.setattr(Files, "allocate", allocate_if_room)
    monkeypatch.setattr(log, "STEP_BYTES", 4096)
    settings: dict[str, Any] = {"rule": "gem", "durability": "commit", "staging_buffers": 2, "checkpoint_interval": 0}
    with serving(2, tmp_path, **settings) as group:
        worker = Worker(group.address, 0)
        worker.begin()
        worker.pull()
        for _ in range(120):
            assert worker.commit().applied
        worker.end()


def test_a_group_stops_although_a_shard_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, full = Files.rename, list[bool]()

    def rename_if_room(self: Files, source: Path, target: Path) -> None:
        if full and "1" in source.relative_to(tmp_path).parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(self, source, target)

    monkeypatch.setattr(Files, "rename", rename_if_room)
    with serving(2, tmp_path, rule="downpour", durability="interval") as group:
        worker = Worker(group.address, 0)
        worker.begin()
        worker.pull()
        assert worker.commit().applied
        worker.end()
        full.append(True)
        with pytest.raises(OSError, match="shard 1 could not write the checkpoint"):
            group.servers[0].stop()
    full.clear()
    with serving(2, tmp_path, rule="downpour", durability="interval", resume=True) as group:
        assert group.clocks() == [1, 1]


@contextmanager
def primary_of_a_process(folder: Path, **settings: Any) -> Iterator[tuple[RealServer, list[str], Popen[bytes]]]:
    """A primary, the command of its shard 1, and that as a process, which may be killed."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gem_cli", "serve", "--shard", "1/2", "--primary", address, "--resume"]
    command += ["--rule", "downpour", "--durability", "interval", "--bind", "127.0.0.1:0"]
    command += ["--data-dir", str(folder / "1")]
    with Popen(command, stderr=subprocess.DEVNULL) as secondary:
        primary = RealServer(shard="0/2", bind=address, data_dir=folder / "0", durability="interval", **settings)
        try:
            yield primary, command, secondary
        finally:
            secondary.kill()
            with suppress(OSError):  # no last checkpoint
                primary.stop()


@pytest.mark.long
def test_a_shard_cannot_join_a_group_that_has_begun(tmp_path: Path) -> None:
    """It would forget what came after the group's start."""
    with primary_of_a_process(tmp_path, commits=2) as (primary, command, secondary):
        worker = Worker(primary.address, 0)
        worker.begin()
        worker.pull()
        for _ in range(2):
            worker.commit()
        worker.end()
        with Observer(primary.address) as observer:
            observer.control("checkpoint", "a test")
        secondary.kill()
        with Popen(command, stderr=subprocess.PIPE, text=True) as late:
            assert late.stderr is not None
            assert any("have begun without 1/2: start all again" in line for line in iter(late.stderr.readline, ""))
            late.kill()
    with serving(2, tmp_path, rule="downpour", durability="interval", resume=True) as group:
        assert group.clocks() == [3, 3]


@pytest.mark.long
def test_a_primary_stops_although_a_lost_shard_was_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committing = threading.Event()
    committed = PrimaryOrder.committed

    async def note(*arguments: Any) -> None:
        committing.set()
        await committed(*arguments)

    with primary_of_a_process(tmp_path) as (primary, _, secondary), ThreadPoolExecutor(2) as threads:
        worker = Worker(primary.address, 0)
        worker.begin()
        worker.pull()
        monkeypatch.setattr(PrimaryOrder, "committed", note)
        monkeypatch.setattr("gem_server.shards.primary.MAX_BEHIND", 0)
        commit = threads.submit(worker.commit)
        assert committing.wait(30)
        secondary.kill()
        stop = threads.submit(primary.stop)
        assert stop in wait([stop], 30).done
        worker.client.give_up()
        wait([commit], 30)
        worker.client.close()


async def test_only_the_first_request_for_a_checkpoint_counts() -> None:
    reports: list[Report] = []
    primary, secondary = PrimaryAgreement(2, lambda _: None), SecondaryAgreement(reports.append)
    for number in (1, 2):
        assert secondary.request_checkpoint()
        assert secondary.request_checkpoint()
        assert primary.is_newest(number - 1)
        primary.cut()
        assert not primary.is_newest(number - 1)
        secondary.checkpoint_cut(number)
    assert reports == [CheckpointNeeded(0), CheckpointNeeded(1)]


def test_a_merged_checkpoint_holds_what_a_server_would(tmp_path: Path) -> None:
    theta = train(3, tmp_path / "shards", 0, rule="gem", durability="commit")
    place = shard_files.merge(data_dirs(tmp_path / "shards", 3), tmp_path / "whole")
    whole = recovery.recover(tmp_path / "whole")
    assert whole is not None
    assert np.array_equal(whole.whole.parameters, theta)
    assert whole.whole.state["commits"] == WORKERS * ROUNDS
    assert (place / "model.safetensors").exists()
    with pytest.raises(StartupError, match="holds a checkpoint already"):
        shard_files.merge(data_dirs(tmp_path / "shards", 3), tmp_path / "whole")
    with pytest.raises(StartupError, match="give all shards, in order"):
        shard_files.merge(data_dirs(tmp_path / "shards", 3)[::-1], tmp_path / "other")
    with pytest.raises(StartupError, match="holds one shard"):
        shard_files.split(tmp_path / "shards" / "0", 2, tmp_path / "other")


@pytest.mark.long
def test_commands_merge_and_split(tmp_path: Path) -> None:
    def gemps(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gem_cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    theta = train(2, tmp_path / "two", 0, rule="downpour")
    merged = gemps("shards", "merge", *data_dirs(tmp_path / "two", 2), "--output", tmp_path / "one")
    assert (Path(merged.stdout.strip()) / "model.safetensors").exists(), merged.stderr
    made = gemps("shards", "split", tmp_path / "one", "--shards", "3", "--output", tmp_path / "three")
    assert made.stdout.split() == [str(path) for path in data_dirs(tmp_path / "three", 3)], made.stderr
    parts = [recovery.recover(path) for path in data_dirs(tmp_path / "three", 3)]
    assert np.array_equal(np.concatenate([one.whole.parameters for one in parts if one is not None]), theta)
    again = gemps("shards", "merge", tmp_path / "two" / "0", "--output", tmp_path / "other")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "give all shards, in order" in again.stderr


def test_shards_of_different_runs_do_not_start(tmp_path: Path) -> None:
    for name in ("one", "other"):
        train(2, tmp_path / name, 0, rule="downpour")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (tmp_path / "one" / "0").rename(mixed / "0")
    (tmp_path / "other" / "1").rename(mixed / "1")
    with pytest.raises(StartupError, match="no common state"), serving(2, mixed, rule="downpour", resume=True):
        pass


def test_a_server_refuses_the_directory_of_another_shard(tmp_path: Path) -> None:
    train(2, tmp_path, 0, rule="downpour")
    (tmp_path / "1").rename(tmp_path / "last")
    with pytest.raises(StartupError, match="last holds shard 1/2, and --shard 0/1 is the whole model"):
        RealServer(rule="downpour", data_dir=tmp_path / "last", resume=True)
    with pytest.raises(StartupError, match="last holds shard 1/2, and --shard 0/2 is shard 0/2"):
        RealServer(rule="downpour", shard="0/2", data_dir=tmp_path / "last", resume=True)
    with pytest.raises(StartupError, match="add --resume"):
        RealServer(rule="downpour", shard="1/2", primary="127.0.0.1:1", data_dir=tmp_path / "last")


def test_a_shard_without_its_directory_does_not_start(tmp_path: Path) -> None:
    train(2, tmp_path, 0, rule="downpour")
    (tmp_path / "1").rename(tmp_path / "elsewhere")
    with pytest.raises(StartupError, match="no common state"), serving(2, tmp_path, rule="downpour", resume=True):
        pass
