"""A named pipe or a device in the place of a server's file is a clear error of its start, and no silent wait."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gem_server.durability import checkpoint, recovery, shard_files
from gem_server.durability.checkpoint import Checkpoint, write_checkpoint
from gem_server.durability.lock import DirectoryLock
from gem_server.errors import StartupError
from gem_server.security.certificates import read_certificates
from gem_server.security.shard_credentials import read_shard_credentials
from gem_server.security.tokens import read_tokens
from gem_server.security.watched_files import UnusableFileError

from gem_trace import TraceError, TraceWriter

from .builders import layout

PATIENCE = 30.0
SAID = "it is a (named pipe \\(FIFO\\)|device), and not a regular file"


def put_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def put_link_to_a_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[put_pipe, put_link_to_a_device], ids=["pipe", "device"])
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something in a file's place."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    state = json.loads(json.dumps({"run": "a", "log": None}))
    write_checkpoint(tmp_path, Checkpoint(layout(), 5, np.zeros(8, np.float32), b"", state))
    return tmp_path


def is_told(call: Callable[[], object], *errors: type[Exception]) -> None:
    """The call raises one of the errors, which says what lies there; on a thread, since it would wait for ever."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for a writer, or reads without end"
    assert found, "no error"
    assert isinstance(found[0], errors), repr(found[0])
    with pytest.raises(type(found[0]), match=SAID):
        raise found[0]


@pytest.mark.parametrize("file", [checkpoint.STATE_FILE, checkpoint.MODEL_FILE, checkpoint.CHECKSUMS_FILE])
def test_in_a_checkpoint(put: Callable[[Path], None], file: str, data_dir: Path, tmp_path: Path) -> None:
    put(data_dir / "latest" / file)
    is_told(lambda: recovery.recover(data_dir), StartupError)
    is_told(lambda: shard_files.split(data_dir, 2, tmp_path / "shards"), StartupError)


def test_in_the_place_of_the_log(put: Callable[[Path], None], data_dir: Path) -> None:
    (data_dir / "log").mkdir()
    put(data_dir / "log" / f"{1:012d}.wal")
    is_told(lambda: recovery.recover(data_dir), StartupError, OSError)


def test_in_the_place_of_the_lock(put: Callable[[Path], None], data_dir: Path) -> None:
    put(data_dir / "lock")
    is_told(DirectoryLock(data_dir).acquire, OSError)


def test_in_the_place_of_a_trace(put: Callable[[Path], None], tmp_path: Path) -> None:
    put(tmp_path / "trace")
    is_told(lambda: TraceWriter(tmp_path / "trace"), TraceError)


def test_in_the_place_of_tokens_certificates_and_shard_credentials(put: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    put(path)
    is_told(lambda: read_tokens(path), UnusableFileError)
    is_told(lambda: read_certificates(path, path, None), UnusableFileError)
    is_told(lambda: read_shard_credentials(tmp_path), StartupError)
