"""A log that was cut or damaged: whole groups come back, or it is refused with file and offset."""

import asyncio
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import log_format, recovery
from gem_server.errors import StartupError

from tests.figures import Figures
from tests.forms import FULL
from tests.wire.model import Model, Tensor
from tests.wire.serving import Serving

# 33 parameters, so that every byte of a record, and every bit, can be tried.
TINY = Model((Tensor("weight", (3, 11)), Tensor("steps", (), "buffer", "int64")))


@dataclass
class Written:
    """A data directory as a kill leaves it, with six commits in its log; and the central variable at every clock."""

    data_dir: Path
    states: dict[int, bytes]

    @property
    def log(self) -> Path:
        (path,) = (self.data_dir / "log").glob("*.wal")
        return path

    def recover(self) -> int:
        """The clock that comes back; the parameters, the buffers and the ledger must be those of that clock."""
        recovered = recovery.recover(self.data_dir)
        assert recovered is not None
        whole = recovered.whole
        assert whole.parameters.astype(np.float32).tobytes() + whole.buffers == self.states[whole.clock]
        assert whole.state["commits"] == whole.clock - 1
        (line,) = whole.state["ledger"]
        assert line["last_applied"] == whole.clock - 1
        if whole.clock > 1:
            assert line["verdict"]["clock"] == whole.clock
        return whole.clock


@pytest.fixture
async def written(tmp_path: Path) -> Written:
    serving = await Serving.start(data_dir=tmp_path / "live", durability="commit", checkpoint_interval=0)
    try:
        (worker,) = await serving.training(1, TINY)
        states = {1: bytes((await serving.read(TINY)).payload)}
        for seed in range(6):
            outcome = await worker.commit(worker.delta(seed))
            states[outcome.verdict.version.clock] = bytes(outcome.reply.payload)
        shutil.copytree(tmp_path / "live", tmp_path / "data", symlinks=True)
    finally:
        await serving.close()
        await serving.stop()
    return Written(tmp_path / "data", states)


def borders(whole: bytes) -> list[int]:
    """Where each record begins, and where the last one ends."""
    data = memoryview(whole)
    header = log_format.decode_header(data)
    assert header is not None
    return [log_format.HEADER_BYTES, *(record.end for record in log_format.read_records(data, header))]


def assert_damaged(error: StartupError, path: Path, offset: int) -> None:
    assert re.search(rf"{path.name} is damaged at offset {offset}:", str(error)), error


def test_vectors_of_workers_that_an_earlier_version_kept_are_not_read(written: Written) -> None:
    data = memoryview(written.log.read_bytes())
    header = log_format.decode_header(data)
    assert header is not None
    moment = memoryview(bytes(header.parameter_bytes))
    pieces = [data[: log_format.HEADER_BYTES]]
    clock = header.clock
    for record in log_format.read_records(data, header):
        document = record.document | {"moments": ["worker"]}
        vectors = [record.parameters, moment]
        pieces += log_format.encode_record(
            header.log_id, clock + 1, record.last_clock, document, bytes(record.buffers), vectors
        )
        clock = record.last_clock
    written.log.write_bytes(b"".join(pieces))
    assert written.recover() == 7


def test_log_cut_at_every_byte_of_its_last_two_records_comes_back_with_whole_groups(
    written: Written, figures: Figures
) -> None:
    path = written.log
    whole = path.read_bytes()
    ends = borders(whole)
    assert len(ends) == 7
    lengths = sorted({*range(ends[-3], ends[-1] + 1, 1 if FULL else 19), ends[-2], ends[-1]})
    for length in lengths:
        path.write_bytes(whole[:length])
        expected = 1 + sum(1 for end in ends[1:] if end <= length)
        assert written.recover() == expected
        # The same with room that was set aside behind it.
        path.write_bytes(whole[:length].ljust(len(whole), b"\0"))
        assert written.recover() == expected
    figures(f"log cut at {len(lengths)} places of its last two records, twice", "whole groups came back each time")


def test_bit_flipped_anywhere_in_the_log_is_refused_with_its_offset_or_cuts_the_last_record(
    written: Written, figures: Figures
) -> None:
    path = written.log
    whole = path.read_bytes()
    ends = borders(whole)
    refused, cut, harmless = 0, 0, 0
    for bit in range(0, 8 * (ends[-1] + 64), 1 if FULL else 97):
        at = bit // 8
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit % 8]) + whole[at + 1 :])
        try:
            clock = written.recover()
        except StartupError as error:
            begins = max([0, *(end for end in ends if end <= at)])
            assert_damaged(error, path, begins)
            assert at < ends[-2]
            refused += 1
        else:
            # The last record may be torn, as after a crash in the midst of its write; behind it nothing is.
            assert at >= ends[-2]
            assert clock == (6 if at < ends[-1] else 7)
            cut, harmless = cut + (clock == 6), harmless + (clock == 7)
    figures("bits flipped in the log", f"{refused} refused with file and offset, {cut} cut back, {harmless} behind it")


def test_zeroed_pages_in_the_midst_of_the_log_are_refused(written: Written) -> None:
    path = written.log
    whole = path.read_bytes()
    ends = borders(whole)
    path.write_bytes(whole[: ends[2]] + bytes(ends[3] - ends[2]) + whole[ends[3] :])
    with pytest.raises(StartupError, match=f"damaged at offset {ends[2]}.*others behind it, from offset {ends[3]}"):
        written.recover()


def test_record_that_is_missing_or_there_twice_is_refused(written: Written) -> None:
    path = written.log
    whole = path.read_bytes()
    ends = borders(whole)
    path.write_bytes(whole[: ends[2]] + whole[ends[3] :])
    with pytest.raises(StartupError, match=f"offset {ends[2]}: this record has clocks 5 to 5 where 4 is next"):
        written.recover()
    path.write_bytes(whole[: ends[3]] + whole[ends[2] : ends[3]] + whole[ends[3] :])
    with pytest.raises(StartupError, match=f"offset {ends[3]}: this record has clocks 4 to 4 where 5 is next"):
        written.recover()


def test_log_of_another_run_or_none_at_all_is_refused(written: Written) -> None:
    path = written.log
    whole = path.read_bytes()
    header = log_format.decode_header(memoryview(whole))
    assert header is not None
    other = log_format.FileHeader(
        header.number,
        b"x" * 16,
        header.previous_id,
        header.clock,
        header.layout_digest,
        header.parameter_bytes,
        header.buffer_bytes,
    )
    path.write_bytes(log_format.encode_header(other) + whole[log_format.HEADER_BYTES :])
    with pytest.raises(StartupError, match="of another log"):
        written.recover()
    path.unlink()
    with pytest.raises(StartupError, match=f"{path.name} is missing"):
        written.recover()


def test_checkpoint_copied_as_a_backup_without_the_log_goes_on_alone_and_says_so(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(written.data_dir / "log")
    assert written.recover() == 1
    assert "continuing from the checkpoint of clock 1 alone, as from a backup" in caplog.text


def test_log_without_its_checkpoint_is_refused(written: Written) -> None:
    (written.data_dir / "latest").unlink()
    with pytest.raises(StartupError, match="is the log of a run whose checkpoint"):
        written.recover()


async def test_server_restarts_on_a_torn_log_and_writes_on(written: Written) -> None:
    path = written.log
    whole = path.read_bytes()
    path.write_bytes(whole[: borders(whole)[-1] - 5])
    for _ in range(3):
        serving = await Serving.start(data_dir=written.data_dir, durability="commit", resume=True)
        try:
            clock = (await serving.status()).version.clock
            assert bytes((await serving.read(TINY)).payload) == written.states[clock]
            (worker,) = await serving.training(1, TINY, name=f"worker-{clock}")
            outcome = await worker.commit(worker.delta(clock))
            written.states[clock + 1] = bytes(outcome.reply.payload)
        finally:
            await serving.close()
            await serving.stop()
            await asyncio.sleep(0)
    assert sorted(written.states)[-1] == 9


async def test_log_that_latest_does_not_know_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`latest` is pointed to the checkpoint of a clean end, from before the one that the log follows."""
    live, data_dir = tmp_path / "live", tmp_path / "data"
    for number in range(2):
        serving = await Serving.start(data_dir=live, durability="commit", checkpoint_interval=0, resume=True)
        try:
            (worker,) = await serving.training(1, TINY)
            for seed in range(2):
                await worker.commit(worker.delta(seed))
            if number:
                shutil.copytree(live, data_dir, symlinks=True)
        finally:
            await serving.close()
            await serving.stop()
        if not number:
            clean_end = (live / "latest").readlink()
    (data_dir / "latest").unlink()
    (data_dir / "latest").symlink_to(clean_end)
    caplog.clear()
    recovered = recovery.recover(data_dir)
    assert recovered is not None
    assert (recovered.whole.clock, recovered.replayed) == (3, 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "holds what came after another checkpoint" in line
