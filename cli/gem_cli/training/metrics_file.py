"""metrics.jsonl: reports of a run's course, in a file of bounded size (docs/command-line.md has the format).

Reports are lines, which are appended. When the file would exceed `MAX_BYTES`, every second line is dropped, and from
then on lines come half as often. So the lines cover the whole run evenly, however long it is and however many workers
it has.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gem_cli.status_view import Status
from gem_cli.strict_json import to_json
from gem_core.regular_files import read_bytes

MAX_BYTES = 32 * 1024 * 1024
# These change although nothing happens.
_PASSING = frozenset(
    {"uptime_seconds", "run_seconds", "seconds_ago", "seconds_since_last_call", "seconds_left", "anonymous_bytes"}
)


class MetricsFile:
    """Writes the file of one run; one process at a time may.

    An existing file is continued, with as much time between its lines as there is on average, and without a last line
    that is incomplete because the writer was killed.

    Args:
        path: the file; its folder exists.
        interval: seconds between two lines, at least.
        max_bytes: limit of the file's size.
    """

    def __init__(self, path: Path, interval: float = 0.0, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._interval = interval
        self._size = 0
        self._written_at: float | None = None
        self._written: Any = None
        self._unwritten: Status | None = None
        if path.exists():
            self._continue()

    def offer(self, status: Status, now: float) -> bool:
        """Append a report if it is due and something has changed; return whether it was appended. `now` in seconds."""
        self._unwritten = status
        if self._written_at is not None and now - self._written_at < self._interval:
            return False
        if (content := _without_passing(status)) == self._written:
            return False
        self._written, self._written_at = content, now
        self.append(status)
        return True

    def append(self, status: Status) -> None:
        """Append a report with the time of now, and drop every second line first if the file would become too large."""
        self._unwritten = None
        line = to_json({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **status}).encode() + b"\n"
        while self._size + len(line) > self._max_bytes and self._thin_out():
            self._interval *= 2
        with self._path.open("ab") as file:
            file.write(line)
        self._size += len(line)

    def write_newest(self) -> Status | None:
        """Append the newest report if it was not appended, and return it then."""
        newest = self._unwritten
        if newest is not None and _without_passing(newest) == self._written:
            self._unwritten = None
            return None
        if newest is not None:
            self.append(newest)
        return newest

    def _continue(self) -> None:
        content = read_bytes(self._path)
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            _replace(self._path, whole)
        self._size = len(whole)
        lines = read_lines(self._path)
        if lines:
            self._interval = max(self._interval, elapsed(lines)[-1] / len(lines))

    def _thin_out(self) -> bool:
        """Drop every second line; return whether there were several."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._size else []
        if len(lines) < 2:
            return False
        kept = b"".join(lines[::2])
        _replace(self._path, kept)
        self._size = len(kept)
        return True


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the reports; empty without a file. A line that is incomplete is left out."""
    lines = read_bytes(path).splitlines() if path.exists() else []
    return [report for line in lines if (report := _parsed(line)) is not None]


def elapsed(lines: Iterable[Mapping[str, Any]]) -> list[float]:
    """Seconds of training of the run at each report: `run_seconds`, added up over the server processes."""
    seconds: list[float] = []
    before = offset = 0.0
    process = None
    for line in lines:
        now, incarnation = float(line.get("run_seconds", 0)), line.get("version", {}).get("incarnation")
        if process not in (None, incarnation):
            offset += before
        seconds.append(offset + now)
        before, process = now, incarnation
    return seconds


def commits_of(lines: Sequence[Mapping[str, Any]]) -> int:
    """Commits of the run in the time that the reports cover: those before the first server process are not."""
    first, last = lines[0], lines[-1]
    return int(last.get("commits", 0)) - (int(first.get("commits", 0)) - int(first.get("commits_of_process", 0)))


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return report


def _without_passing(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_passing(part) for name, part in value.items() if name not in _PASSING}
    if isinstance(value, (list, tuple)):
        return [_without_passing(part) for part in value]
    return value


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
