"""`gemps status --watch` in a real terminal, with a real server: readable, steady, and gone without a trace."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from gem_worker.client import Client, RunFinishedError

from tests.cli.processes import children, command, gemps, in_terminal
from tests.cli.tmux import ENDED, Window
from tests.client.models import SMALL, payload
from tests.client.real_server import RealServer, begin
from tests.waiting import eventually

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux")
PATHS = ":".join(sys.path)

Open = Callable[..., Window]


class Crowd:
    """Workers on threads of this process, which commit until they are told to end."""

    def __init__(self, address: str, count: int) -> None:
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(address, f"worker-{number}"), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ends.set()
        self.wait()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(60)

    def _work(self, address: str, name: str) -> None:
        with Client(address, worker_name=name, layout=SMALL) as client:
            into = begin(client, SMALL)
            loss = 1.0
            try:
                while not self._ends.wait(0.03):
                    client.commit(payload(SMALL, 0.1), into, loss=loss)
                    loss *= 0.999
                client.leave("told to")
            except RunFinishedError:
                client.leave("finished")


@pytest.fixture
def server() -> Iterator[RealServer]:
    started = RealServer(rule="gem", commits=1_000_000)
    yield started
    started.stop()


@pytest.fixture
def crowd(server: RealServer) -> Iterator[Crowd]:
    workers = Crowd(server.address, 20)
    yield workers
    workers.end()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens windows that run `gemps status --watch` with these arguments."""
    windows: list[Window] = []

    def open_window(*arguments: str, width: int = 80, height: int = 24, **env: str) -> Window:
        folder = tmp_path / f"window-{len(windows)}"
        folder.mkdir()
        known = {"PYTHONPATH": PATHS, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], **env}
        windows.append(
            Window(folder, command("status", "--watch", "--interval", "0.2", *arguments), known, width, height)
        )
        return windows[-1]

    yield open_window
    for window in windows:
        window.close()


def places(lines: list[str]) -> list[tuple[int, str]]:
    """Where what does not change stands: the line of each name, and of each worker."""
    return [(number, line.split()[0]) for number, line in enumerate(lines) if line.split()]


@needs_tmux
def test_a_run_is_readable_at_80_by_24_and_nothing_moves(server: RealServer, crowd: Crowd, opened: Open) -> None:
    window = opened(server.address)
    window.until_it_says("by trouble")
    window.press("s")  # whether a worker is slow for a moment is no matter of this test
    window.until_it_says("by rank")
    lines = window.until(lambda seen: sum(line[16:24] == "training" for line in seen) == 13)
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert any("of 1,000,000 commits" in line for line in lines)
    heading = next(number for number, line in enumerate(lines) if line.startswith("worker  "))
    for name in ("state", "condition", "commits/s", "loss", "stale", "pi", "blocked", "seen"):
        assert name in lines[heading].split()
    shown = [line for line in lines[heading + 1 :] if line.startswith("worker-")]
    assert [len(line) for line in shown] == [80] * 13
    assert all(line[27:36].split()[0] in ("well", "SLOW", "SILENT", "MUTED") for line in shown)
    assert "1–13 of 20" in lines[heading - 1]  # noqa: RUF001
    version = lines[0].split("version")[1].split()[0]
    seen = window.until(lambda now: now[0].split("version")[1].split()[0] != version)
    assert places(seen) == places(lines)
    for title in (seen[0], lines[0]):
        assert title.index("version") == lines[0].index("version")
    window.press("Down")
    window.until_it_says("2–14 of 20")  # noqa: RUF001
    window.press("G")
    window.until_it_says("8–20 of 20")  # noqa: RUF001
    window.press("s")
    window.until_it_says("by slowest")
    window.press("?")
    explained = window.until_it_says("Jain's index")
    assert max(map(len, explained)) <= 80
    window.press("?")
    window.until_it_says("1–13 of 20")  # noqa: RUF001
    window.resize(200, 60)
    wide = window.until(lambda seen: any("1–20 of 20" in line for line in seen))  # noqa: RUF001
    assert (len(wide), max(map(len, wide))) == (60, 200)
    for name in ("rank", "exchange", "p99", "clamped", "refused"):
        assert any(name in line.split() for line in wide)
    for _ in range(5):
        window.press("s")
    window.until_it_says("by rank")
    window.resize(80, 24)
    window.until(lambda seen: places(seen) == places(lines))
    window.press("q")
    window.until_it_says(f"{ENDED} 0")
    restored(window)


@needs_tmux
def test_ctrl_c_ends_it_and_restores_the_terminal(server: RealServer, opened: Open) -> None:
    window = opened(server.address)
    window.until_it_says("WAITING for 1 more")
    assert window.says("alternate_on") == "1"
    assert window.says("cursor_flag") == "0"
    window.press("C-c")
    window.until_it_says(f"{ENDED} 130")
    restored(window)


@needs_tmux
def test_it_can_be_stopped_continued_and_terminated(server: RealServer, opened: Open) -> None:
    window = opened(server.address)
    window.until_it_says("WAITING for 1 more")
    (process,) = children(int(window.says("pane_pid")))
    window.press("C-z")
    window.until(lambda _: window.says("alternate_on") == "0")
    window.until(lambda _: process.status() == psutil.STATUS_STOPPED)
    assert window.says("cursor_flag") == "1"
    process.send_signal(signal.SIGCONT)
    window.until_it_says("WAITING for 1 more")
    process.terminate()
    window.until_it_says(f"{ENDED} 143")
    restored(window)


def restored(window: Window) -> None:
    assert (window.says("alternate_on"), window.says("cursor_flag"), window.says("wrap_flag")) == ("0", "1", "1")
    eventually(lambda: (window.folder / "after").exists() and window.modes()[1], patience=10.0)
    before, after = window.modes()
    assert before == after
    assert not any("TRAINING" in line or "Traceback" in line for line in window.screen())


@needs_tmux
def test_a_server_that_goes_is_told_and_one_that_is_back_is_shown_again(server: RealServer, opened: Open) -> None:
    window = opened(server.address, TERM="linux")
    window.until_it_says("WAITING")
    assert all(line.isascii() for line in window.screen())  # a font without blocks
    server.stop()
    lines = window.until_it_says("q quit   asking it again until it answers: ")  # the last line to be drawn
    assert any("NO ANSWER" in line for line in lines)
    back = server.again()
    try:
        window.until_it_says("WAITING")
    finally:
        back.stop()


@needs_tmux
def test_the_end_of_a_run_stays_until_q_and_leaves_a_line_behind(opened: Open) -> None:
    server = RealServer(rule="gem", commits=5)
    try:
        Crowd(server.address, 1).wait()
        window = opened(server.address)
        lines = window.until_it_says("the run is over")
        assert "FINISHED" in lines[0]
        assert any("100 %" in line for line in lines)
        window.press("q")
        window.until_it_says(f"{ENDED} 0")
        window.until_it_says("finished  version 6")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def ended_run() -> Iterator[RealServer]:
    server = RealServer(rule="gem", commits=5)
    Crowd(server.address, 1).wait()
    yield server
    server.stop()


def test_without_a_terminal_it_prints_lines_until_the_run_ends(ended_run: RealServer) -> None:
    done = gemps("status", ended_run.address, "--watch")
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert "finished  version 6" in line


@pytest.mark.parametrize(
    ("at_terminal", "name", "options"),
    [(True, "dumb", []), (True, "", []), (False, "xterm", []), (True, "xterm", ["--json"])],
)
def test_what_cannot_show_a_screen_gets_lines(
    ended_run: RealServer, at_terminal: bool, name: str, options: list[str]
) -> None:
    """These are terminals without cursor movement, an input that is no terminal, and programs."""
    code, said = in_terminal(
        "status", ended_run.address, "--watch", *options, at_terminal=at_terminal, env={"TERM": name}
    )
    assert code == 0
    assert "finished" in said.lower()
    assert "\x1b" not in said


def test_no_server_at_the_start_is_one_line_as_for_every_command() -> None:
    code, said = in_terminal("status", "127.0.0.1:9", "--watch", at_terminal=True)
    assert code == 1
    assert said.strip().count("\n") == 0
    assert "gemps serve" in said
    assert "\x1b" not in said
