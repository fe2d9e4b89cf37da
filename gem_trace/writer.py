"""Append to trace files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gem_core.regular_files import open_regular
from gem_trace.files import lock, map_file
from gem_trace.format import FORMAT, MAGIC, DamageError, Record, encode, read_records


class TraceError(Exception):
    """A trace cannot be written."""


class TraceWriter:
    """Appends to a trace file under an exclusive lock. Blocking.

    Truncates an incomplete tail (`cut_at`). `run` and `clock`: last ones in the file.

    Raises:
        TraceError: the file is unusable, of another format, or locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_at: int | None = None
        self.run: str | None = None
        self.clock = 0
        self._end = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise TraceError(f"the trace {path} cannot be written: {error.strerror}; choose another file") from error
        try:
            self._resume()
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, event: dict[str, Any], payload: Sequence[memoryview] = ()) -> None:
        """Write a record to the OS. On OSError the file is unchanged."""
        at = self._end
        try:
            for piece in encode(event, payload):
                left = piece
                while left.nbytes:
                    written = os.pwrite(self._descriptor, left, at)
                    left, at = left[written:], at + written
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end = at

    def close(self) -> None:
        """Sync and close. Raises OSError."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def _resume(self) -> None:
        if not lock(self._descriptor):
            raise TraceError(f"another process is writing the trace {self.path}: choose another file")
        data = map_file(self.path)
        last: Record | None = None
        try:
            for last in read_records(data, check=False):
                if (form := last.event.get("format", FORMAT)) != FORMAT:
                    raise TraceError(
                        f"the trace {self.path} has the format {form}, and this version of gemps writes {FORMAT}: "
                        "choose another file"
                    )
                self.clock = int(last.event.get("clock", self.clock))
                if last.event["event"] == "parameters":
                    self.run = str(last.event["run"])
                self._end = last.end
        except DamageError as error:
            raise TraceError(f"the trace {self.path} is {error}; choose another file") from error
        if last is not None and not _is_whole(data, last):
            self._end = last.offset
        if not self._end and not _can_be_torn(data):
            raise TraceError(f"{self.path} is not a trace of gemps: choose another file")
        if self._end < data.nbytes:
            self.cut_at = self._end
            os.ftruncate(self._descriptor, self._end)


def _is_whole(data: memoryview, record: Record) -> bool:
    return next(read_records(data[record.offset : record.end]), None) is not None


def _can_be_torn(data: memoryview) -> bool:
    return bytes(data[: len(MAGIC)]) in (b"", MAGIC, bytes(len(MAGIC)))
