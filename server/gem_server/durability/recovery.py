"""Recovery from the newest checkpoint and its log; read-only."""

import contextlib
import logging
import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gem_core.aligned import aligned_copy
from gem_core.regular_files import open_regular, read_bytes
from gem_server.durability import checkpoint, log_format, run_record
from gem_server.durability.checkpoint import Checkpoint
from gem_server.durability.log_format import NO_LOG, DamageError, FileHeader, Record
from gem_server.errors import StartupError

LOG = "log"
# Of those that a shard reports, the newest; others recover these soon enough.
MAX_CLOCKS = 6_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Recovered state; `replayed` commits are from the log."""

    whole: Checkpoint
    replayed: int
    last_number: int
    last_id: bytes


def recover(data_dir: Path) -> Recovered | None:
    """Recover what exists, if anything. Raises StartupError for damage."""
    directory = data_dir / LOG
    saved = checkpoint.read_latest(data_dir)
    if saved is None:
        _check_no_records(directory)
        return None
    reference = saved.state.pop("log", None)
    if reference is not None and not directory.exists():
        logger.warning(
            "there is no %s: continuing from the checkpoint of clock %d alone, as from a backup", directory, saved.clock
        )
        reference = None
    if reference is None:
        if (path := _log_after(directory, saved.clock)) is not None:
            logger.warning(
                "%s holds what came after another checkpoint than %s, which `latest` points to: continuing from clock "
                "%d without it",
                path,
                (data_dir / checkpoint.LATEST).resolve().name,
                saved.clock,
            )
        return Recovered(saved, 0, _highest(directory), NO_LOG)
    chain = _Chain(directory, saved)
    try:
        chain.read(int(reference["number"]), bytes.fromhex(reference["id"]))
    except OSError as error:
        raise StartupError(f"the log in {directory} cannot be read: {error}") from error
    return chain.recovered()


def recover_at(data_dir: Path, clock: int) -> Recovered:
    """Recover the state of `clock`, one of `clocks`. Raises StartupError for damage."""
    directory = data_dir / LOG
    for at, place in reversed(checkpoint.all_checkpoints(data_dir)):
        if at > clock or clock not in _clocks_after(directory, at, place):
            continue
        saved = checkpoint.read_checkpoint(place)
        reference = saved.state.pop("log", None)
        if at < clock:
            chain = _Chain(directory, saved, until=clock)
            chain.read(int(reference["number"]), bytes.fromhex(reference["id"]))
            saved = chain.recovered().whole
        return Recovered(saved, clock - at, _highest(directory), NO_LOG)
    raise StartupError(f"{data_dir} has no checkpoint from which clock {clock} can be recovered: bring it back")


def clocks(data_dir: Path) -> tuple[list[int], str]:
    """The clocks at which a shard can recover, ascending, and their run. Raises StartupError."""
    found: set[int] = set()
    run = ""
    for at, place in checkpoint.all_checkpoints(data_dir):
        run = str(checkpoint.read_state(place)[1]["run"])
        found |= _clocks_after(data_dir / LOG, at, place)
    return sorted(found)[-MAX_CLOCKS:] or [0], run


def _clocks_after(directory: Path, clock: int, place: Path) -> set[int]:
    layout, state = checkpoint.read_state(place)
    reference = state.get("log")
    if reference is None or not (directory / f"{int(reference['number']):012d}.wal").exists():
        return {clock}
    chain = _Chain(directory, Checkpoint(layout, clock, np.empty(0, np.float32), b"", state))
    chain.read(int(reference["number"]), bytes.fromhex(reference["id"]))
    return {clock, *chain.clocks}


class _Chain:
    """The log's files after a checkpoint, until a clock."""

    def __init__(self, directory: Path, saved: Checkpoint, until: int | None = None) -> None:
        self._until = until
        self.clocks: list[int] = []
        self._directory = directory
        self._saved = saved
        self._documents: list[dict[str, Any]] = []
        self._parameters = saved.parameters
        self._rule_vectors = saved.rule_vectors
        self._buffers = saved.buffers
        self._clock = saved.clock
        self._number = 0
        self._last_id = NO_LOG

    def read(self, number: int, log_id: bytes) -> None:
        """Read this file and its successors. Raises StartupError, OSError."""
        if not self._path(number).exists():
            raise StartupError(
                f"the log {self._path(number)} is missing: the checkpoint "
                f"{(self._directory.parent / checkpoint.LATEST).resolve()} says that it holds what came after it; "
                "bring it back, or remove the whole folder to continue from the checkpoint alone and lose the rest"
            )
        while self._clock != self._until and self._path(number).exists() and self._read_file(number, log_id):
            number, log_id = number + 1, b""

    def recovered(self) -> Recovered:
        saved = self._saved
        run_record.advance(saved.state, self._documents)
        whole = replace(
            saved,
            clock=self._clock,
            parameters=self._parameters,
            buffers=self._buffers,
            rule_vectors=self._rule_vectors,
        )
        return Recovered(whole, self._clock - saved.clock, self._number, self._last_id)

    def _read_file(self, number: int, log_id: bytes) -> bool:
        """Whether it was used; an empty `log_id` means the successor."""
        path = self._path(number)
        with os.fdopen(open_regular(path), "rb") as stream:
            if path.stat().st_size == 0:
                if log_id:
                    raise _refused(path, DamageError(0, "it is empty"))
                return False
            data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        try:
            header = self._header(data, number, log_id)
            if header is None:
                return False
            self._read_records(path, data, header)
        except DamageError as error:
            raise _refused(path, error) from None
        self._number, self._last_id = number, header.log_id
        return True

    def _header(self, data: memoryview, number: int, log_id: bytes) -> FileHeader | None:
        try:
            header = log_format.decode_header(data)
        except DamageError:
            if log_id or log_format.has_records(data):
                raise
            return None  # torn during creation
        if header is None:
            if log_id or log_format.has_records(data):
                raise DamageError(0, "its header is missing")
            return None
        expected = (number, self._saved.layout.digest, self._clock)
        follows = header.log_id == log_id if log_id else header.previous_id == self._last_id
        if not follows or (header.number, header.layout_digest, header.clock) != expected:
            raise DamageError(
                0, f"it follows clock {header.clock} of another log or layout, where clock {self._clock} is the last"
            )
        return header

    def _read_records(self, path: Path, data: memoryview, header: FileHeader) -> None:
        end = log_format.HEADER_BYTES
        last: Record | None = None
        for record in log_format.read_records(data, header):
            if self._until is not None and record.last_clock > self._until:
                break
            self.clocks.append(record.last_clock)
            self._documents.append(record.document)
            last, end = record, record.end
        if last is not None:
            values, count = np.frombuffer(last.parameters, np.float32), self._saved.layout.parameter_count
            self._parameters = aligned_copy(values[:count])
            if count:
                self._rule_vectors = tuple(map(aligned_copy, values[count:].reshape(-1, count)))
            self._buffers = bytes(last.buffers)
            self._clock = last.last_clock
        if self._until is None and _any(data, end):
            logger.warning(
                "%s: what begins at offset %d is not whole, and is cut off, as after a crash during a write",
                path,
                end,
            )

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}.wal"


def _any(data: memoryview, start: int) -> bool:
    step = log_format.SEARCHED_BYTES
    return any(bytes(data[at : at + step]).strip(b"\0") for at in range(start, data.nbytes, step))


def _check_no_records(directory: Path) -> None:
    for path in sorted(directory.glob("*.wal")):
        if log_format.has_records(memoryview(read_bytes(path))):
            raise StartupError(
                f"{path} is the log of a run whose checkpoint ({checkpoint.LATEST}) is missing: bring that back, or "
                "choose another --data-dir"
            )


def _log_after(directory: Path, clock: int) -> Path | None:
    for path in sorted(directory.glob("*.wal")):
        data = memoryview(read_bytes(path))
        with contextlib.suppress(DamageError):
            header = log_format.decode_header(data)
            if header is not None and header.clock >= clock and log_format.has_records(data):
                return path
    return None


def _highest(directory: Path) -> int:
    return max((int(path.stem) for path in directory.glob("*.wal")), default=0)


def _refused(path: Path, error: DamageError) -> StartupError:
    return StartupError(
        f"the log {path} is damaged at offset {error.offset}: {error}; bring the file back from a copy; or move "
        f"the folder {path.parent} away, to continue from the checkpoint alone and lose what came after it"
    )
