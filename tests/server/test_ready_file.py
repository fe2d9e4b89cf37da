"""The ready file, on an event loop of the test's own: what supervisors and health checks see of a server."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gem_server import ready_file
from gem_server.errors import StartupError
from gem_server.ready_file import ReadyFile

from tests.waiting import eventually_async


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_file, "RENEW_SECONDS", 0.01)


async def until_there(path: Path) -> None:
    await eventually_async(path.exists)


async def renewals_pass(folder: Path, count: int) -> None:
    """Return when another server's file, removed so often, was written again each time."""
    path = folder / "other.json"
    file = ReadyFile(path)
    file.announce("127.0.0.1", 2)
    for _ in range(count):
        await until_there(path)
        path.unlink()
    file.withdraw()


@pytest.fixture
async def announced(tmp_path: Path) -> AsyncIterator[Path]:
    """The file of a server that serves."""
    file = ReadyFile(tmp_path / "ready.json")
    file.announce("127.0.0.1", 1)
    await until_there(tmp_path / "ready.json")
    yield tmp_path / "ready.json"
    file.withdraw()


def test_what_a_killed_server_left_is_removed_before_this_one_serves(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left by a killed server", encoding="utf-8")
    ReadyFile(path).prepare()
    assert list(tmp_path.iterdir()) == []


async def test_it_holds_address_port_and_process(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    for host, address in (("10.0.0.1", "10.0.0.1:50051"), ("::1", "[::1]:50051")):
        file = ReadyFile(path)
        file.prepare()
        file.announce(host, 50051)
        await until_there(path)
        assert json.loads(path.read_text(encoding="utf-8")) == {"address": address, "port": 50051, "pid": os.getpid()}
        file.withdraw()


async def test_it_says_where_the_dashboard_is(tmp_path: Path) -> None:
    file = ReadyFile(tmp_path / "ready.json")
    file.announce("127.0.0.1", 1, "http://127.0.0.1:8080/")
    await until_there(tmp_path / "ready.json")
    assert json.loads((tmp_path / "ready.json").read_text(encoding="utf-8"))["dashboard"] == "http://127.0.0.1:8080/"
    file.withdraw()


async def test_it_is_renewed_while_the_event_loop_runs(announced: Path) -> None:
    for _ in range(3):
        os.utime(announced, (0, 0))
        await eventually_async(lambda: announced.stat().st_mtime)


async def test_it_is_written_again_when_somebody_removed_it(announced: Path) -> None:
    before = announced.read_text(encoding="utf-8")
    announced.unlink()
    await until_there(announced)
    assert announced.read_text(encoding="utf-8") == before


async def test_withdrawn_it_stays_away(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path / "ready.json"
    file = ReadyFile(path)
    file.announce("127.0.0.1", 1)
    await until_there(path)
    await renewals_pass(tmp_path_factory.mktemp("other"), 3)
    file.withdraw()
    file.withdraw()
    await renewals_pass(tmp_path_factory.mktemp("other"), 10)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_cannot_be_renewed_is_told_once_and_tried_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = ReadyFile(folder / "ready.json")
    file.prepare()
    folder.rmdir()
    file.announce("127.0.0.1", 1)
    await renewals_pass(tmp_path_factory.mktemp("other"), 5)
    folder.mkdir()
    await until_there(folder / "ready.json")
    file.withdraw()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("place", ["missing/ready.json", "folder"])
def test_a_place_where_it_cannot_be_is_told_at_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StartupError, match="--ready-file"):
        ReadyFile(tmp_path / place).prepare()
