"""Files that change while the server runs are read in a thread: a slow disk must not stop the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

import pytest
from gem_server.security import watched_files
from gem_server.security.watched_files import LOOK_SECONDS, UnusableFileError, WatchedFiles

from tests.waiting import eventually_async

PATIENCE = 10.0


class NotingPath(PosixPath):
    """A path that notes which threads look at its file."""

    looking: list[threading.Thread]

    def stat(self, **options: Any) -> Any:
        self.looking.append(threading.current_thread())
        return super().stat(**options)


class SlowFile:
    """A file whose reading can be held up, and what was seen of its readers."""

    def __init__(self, path: Path) -> None:
        self.path = NotingPath(path)
        self.path.looking = []
        self.now = 0.0
        self.readers: list[threading.Thread] = []
        self.most_at_once = 0
        self.at_once = 0
        self.may_read = threading.Event()
        self.may_read.set()
        self.is_usable = True
        self.write("first")
        self.watched = WatchedFiles([self.path], self._read, lambda: self.now)

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.now += LOOK_SECONDS

    def _read(self) -> str:
        self.readers.append(threading.current_thread())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            assert self.may_read.wait(PATIENCE)
            if not self.is_usable:
                raise UnusableFileError(f"{self.path} is no good")
            return self.path.read_text()
        finally:
            self.at_once -= 1


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SlowFile]:
    made = SlowFile(tmp_path / "file")
    yield made
    made.may_read.set()


async def test_changed_file_is_looked_at_and_read_in_a_thread(file: SlowFile) -> None:
    assert await file.watched.newest() == "first"
    file.write("second, longer")
    file.path.looking.clear()
    file.readers.clear()
    assert await file.watched.newest() == "second, longer"
    assert file.path.looking
    assert file.readers
    assert threading.main_thread() not in [*file.path.looking, *file.readers]


async def test_event_loop_runs_on_and_callers_share_one_reading(file: SlowFile) -> None:
    file.write("second, longer")
    file.may_read.clear()
    waiting = [asyncio.create_task(file.watched.newest()) for _ in range(20)]
    await eventually_async(lambda: file.at_once)
    assert not any(task.done() for task in waiting)
    file.may_read.set()
    assert await asyncio.gather(*waiting) == ["second, longer"] * 20
    assert len(file.readers) == 2
    assert file.most_at_once == 1


async def test_reading_that_takes_too_long_leaves_the_old_value_for_now(
    file: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "READ_PATIENCE_SECONDS", 0.05)
    file.write("second, longer")
    file.may_read.clear()
    assert await file.watched.newest() == "first"
    async with asyncio.timeout(0.04):  # the same reading is not waited for again
        assert await file.watched.newest() == "first"
    file.may_read.set()

    async def is_read() -> bool:
        return await file.watched.newest() == "second, longer"

    await eventually_async(is_read)
    assert len(file.readers) == 2


async def test_unusable_file_leaves_the_old_value_and_is_logged_once(
    file: SlowFile, caplog: pytest.LogCaptureFixture
) -> None:
    file.is_usable = False
    file.write("second, longer")
    for _ in range(3):
        assert await file.watched.newest() == "first"
        file.now += LOOK_SECONDS
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    file.is_usable = True
    file.write("third")
    assert await file.watched.newest() == "third"


async def test_caller_that_is_cancelled_cancels_no_reading_of_others(file: SlowFile) -> None:
    file.write("second, longer")
    file.may_read.clear()
    first, second = (asyncio.create_task(file.watched.newest()) for _ in range(2))
    await eventually_async(lambda: file.at_once)
    first.cancel()
    await asyncio.sleep(0)
    file.may_read.set()
    assert await second == "second, longer"
    assert first.cancelled()
