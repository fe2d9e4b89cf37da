"""A data directory on a file system that lacks something is refused at the start, and not at the first checkpoint."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from gem_server.durability.files import Files
from gem_server.durability.probe import probe
from gem_server.errors import StartupError
from gem_server.server import Server

from tests.server_settings import server_settings


class Lacking(Files):
    """A file system on which one operation fails."""

    def __init__(self, operation: str, error: int = errno.EPERM) -> None:
        self.calls = 0

        def fail(*_: Any) -> None:
            self.calls += 1
            raise OSError(error, os.strerror(error))

        setattr(self, operation, fail)


def test_nothing_is_left_and_leftovers_are_no_obstacle(tmp_path: Path) -> None:
    probe(Files(), tmp_path, allocates=True)
    assert not [*tmp_path.iterdir()]
    (tmp_path / ".probe" / "unfinished").mkdir(parents=True)
    probe(Files(), tmp_path, allocates=True)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ("make_directory", "make folders"),
        ("create", "create and write files"),
        ("write", "create and write files"),
        ("sync_data", "sync files"),
        ("allocate", "reserve room for files"),
        ("sync", "sync f"),
        ("rename", "rename folders"),
        ("link", "make symbolic links"),
    ],
)
def test_what_is_missing_is_named_with_the_way_out(tmp_path: Path, operation: str, text: str) -> None:
    with pytest.raises(StartupError, match=rf"{tmp_path} cannot {text}.*\(Operation not permitted\).*local disk"):
        probe(Lacking(operation), tmp_path, allocates=True)
    assert not [*tmp_path.iterdir()]


def test_links_that_cannot_be_read_through_are_found(tmp_path: Path) -> None:
    files = Files()
    files.link = lambda link, target: link.write_bytes(str(target).encode())  # type: ignore[method-assign]
    with pytest.raises(StartupError, match="cannot follow symbolic links"):
        probe(files, tmp_path, allocates=True)


def test_without_a_log_no_room_is_reserved(tmp_path: Path) -> None:
    probe(Lacking("allocate"), tmp_path, allocates=False)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_does_not_prevent_the_start(tmp_path: Path, error: int) -> None:
    files = Lacking("sync_data", error)
    probe(files, tmp_path, allocates=True)
    assert files.calls == 1


async def test_a_server_does_not_start_without_symbolic_links(tmp_path: Path) -> None:
    settings = server_settings(bind="127.0.0.1:0", data_dir=tmp_path / "data")
    server = Server(settings, files=Lacking("link"))
    with pytest.raises(StartupError, match="symbolic links"):
        await server.start()
