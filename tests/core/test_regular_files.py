"""Only regular files are opened: whatever else lies at a path is an error at once, and never waits for a writer."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gem_core.regular_files import check_regular, open_regular, read_bytes, read_text

PATIENCE = 30.0
Make = Callable[[Path], object]


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


KINDS: dict[str, Make] = {
    "named pipe": os.mkfifo,
    "link to a named pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": bind_socket,
    "directory": Path.mkdir,
}


def error_of(call: Callable[[], object]) -> OSError:
    """What the call raises; on a thread of its own, since what is tested would wait for ever."""
    found: list[OSError] = []

    def run() -> None:
        try:
            call()
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for a writer, or reads without end"
    assert found, "no error"
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "access",
    [
        read_bytes, read_text, check_regular, open_regular,
        lambda path: open_regular(path, os.O_RDWR | os.O_CREAT), lambda path: open_regular(path, os.O_WRONLY),
    ],
    ids=["bytes", "text", "check", "read", "create", "write"],
)  # fmt: skip
def test_what_is_no_regular_file_is_an_error_that_says_what_it_is(
    kind: str, access: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    KINDS[kind](path)
    error = error_of(lambda: access(path))
    assert error.strerror.endswith("and not a regular file")
    assert error.filename == str(path)


def test_regular_files_are_read_written_and_made(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.close(open_regular(path, os.O_RDWR | os.O_CREAT))
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"a\r\nb\rc\n\xc3\xa9")
    assert read_bytes(path) == b"a\r\nb\rc\n\xc3\xa9"
    assert read_text(path) == path.read_text(encoding="utf-8") == "a\nb\nc\né"
    (tmp_path / "link").symlink_to(path)
    assert read_bytes(tmp_path / "link") == path.read_bytes()


def test_what_is_not_there_is_told_as_ever(tmp_path: Path) -> None:
    for access in (read_bytes, open_regular, check_regular):
        with pytest.raises(FileNotFoundError):
            access(tmp_path / "missing")


def test_a_pipe_that_the_shell_passed_is_read_to_its_end() -> None:
    """As in `gemps serve --config <(vault read settings)`; the writer comes late."""
    line = f"{sys.executable} -c 'import sys; from gem_core.regular_files import read_text; " \
        "print(read_text(sys.argv[1]))' <(sleep 0; echo steps = 3)"  # fmt: skip
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.strip() == "steps = 3", done.stderr
