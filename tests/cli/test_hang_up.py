"""The terminal of a command closes: SIGHUP ends it as SIGTERM does, unless it is ignored, as under nohup."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gem_worker.client import Observer

from tests.cli.processes import CLEAN, PATIENCE, children, command, served, started, wait_for, wait_until_gone
from tests.waiting import eventually

HANG_UP_EXIT = 128 + signal.SIGHUP


class Session:
    """A command that leads a session on its own terminal, whose output is read and discarded."""

    def __init__(self, arguments: list[str]) -> None:
        self._leader, follower = pty.openpty()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.process = subprocess.Popen(
            arguments,
            env={**CLEAN, "TERM": "xterm"},
            stdin=follower,
            stdout=follower,
            stderr=follower,
            preexec_fn=self._lead,
        )
        os.close(follower)

    def close_terminal(self) -> None:
        """The kernel sends SIGHUP to the command; from then on, what it writes to the terminal fails with EIO."""
        if not self._is_closing.is_set():
            self._is_closing.set()
            self._thread.join()
            os.close(self._leader)

    @staticmethod
    def _lead() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def _read(self) -> None:
        """Read, so that the command never waits for room. A read that blocks would keep the terminal open."""
        with contextlib.suppress(OSError):  # how Linux tells that the command has ended
            while not self._is_closing.is_set():
                if select.select([self._leader], [], [], 0.05)[0]:
                    os.read(self._leader, 65536)


@contextmanager
def in_a_session(arguments: list[str]) -> Iterator[Session]:
    session = Session(arguments)
    try:
        yield session
    finally:
        for one in [*children(session.process.pid), session.process]:
            one.kill()
        session.close_terminal()
        session.process.wait(PATIENCE)


def lives(session: Session, condition: bool) -> bool:
    assert session.process.poll() is None
    return condition


@pytest.mark.parametrize("stop", ["signal", "terminal"])
def test_it_ends_a_server_with_a_checkpoint_and_exit_code_0(stop: str, tmp_path: Path) -> None:
    ready, data = tmp_path / "ready.json", tmp_path / "data"
    serve = command("serve", "--bind=127.0.0.1:0", f"--ready-file={ready}", f"--data-dir={data}", "--commits=100000000")
    with in_a_session(serve) as session:
        eventually(lambda: lives(session, ready.exists()), patience=PATIENCE)
        address = json.loads(ready.read_text(encoding="utf-8"))["address"]
        with started(command("work", address, "--worker-name=w"), tmp_path / "log") as worker:
            with Observer(address) as observer:
                eventually(lambda: observer.get_status()["commits"] >= 3, patience=PATIENCE)
            if stop == "signal":
                session.process.send_signal(signal.SIGHUP)
            else:
                session.close_terminal()
            assert session.process.wait(PATIENCE) == 0
            assert worker.poll() is None
    assert json.loads((data / "latest" / "state.json").read_text(encoding="utf-8"))["clock"] > 3


def test_it_ends_a_worker_that_leaves_and_exits_with_0(tmp_path: Path) -> None:
    with served(tmp_path, "--commits=100000000") as (address, _), Observer(address) as observer:
        with in_a_session(command("work", address, "--worker-name=w", "--log-interval=0")) as session:
            eventually(lambda: lives(session, observer.get_status()["commits"] >= 3), patience=PATIENCE)
            session.close_terminal()
            assert session.process.wait(PATIENCE) == 0
        (worker,) = observer.get_status()["workers"]
        assert worker["state"] == "WORKER_STATE_LEFT"


def test_it_ends_a_training_with_its_results_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = command("train", "--workers=2", "--commits=100000000", f"--run-dir={folder}", "--set=report_interval=0.2")
    with in_a_session(train) as session:
        metrics = folder / "metrics.jsonl"
        eventually(
            lambda: lives(session, metrics.exists() and "RUN_STATE_TRAINING" in metrics.read_text(encoding="utf-8")),
            patience=PATIENCE,
        )
        family = children(session.process.pid)
        assert len(family) >= 3
        session.close_terminal()
        assert session.process.wait(PATIENCE) == HANG_UP_EXIT
        wait_until_gone(family)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["interrupted"] is True
    assert summary["exit_codes"]["server"] == 0
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["serve", "work"])
def test_a_command_that_ignores_it_goes_on(name: str, tmp_path: Path) -> None:
    """The signal that is ignored stays pending nowhere, so the commits that follow show that it did nothing."""
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    serve = command("serve", "--bind=127.0.0.1:0", f"--ready-file={ready}", "--commits=100000000")
    with started([*ignoring, *serve], log) as server:
        wait_for(ready.exists, server, log)
        address = json.loads(ready.read_text(encoding="utf-8"))["address"]
        with started([*ignoring, *command("work", address)], tmp_path / "worker.log") as worker:
            with Observer(address) as observer:
                eventually(lambda: observer.get_status()["commits"] >= 3, patience=PATIENCE)
                (server if name == "serve" else worker).send_signal(signal.SIGHUP)
                before = observer.get_status()["commits"]
                eventually(lambda: observer.get_status()["commits"] >= before + 100, patience=PATIENCE)
            assert (server.poll(), worker.poll()) == (None, None)
