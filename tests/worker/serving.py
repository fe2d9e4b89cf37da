"""A real server to train against: on a thread of this process, or as a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gem_server.server import Server

from tests.server_settings import server_settings
from tests.waiting import eventually

PATIENCE = 120.0


class ServerThread:
    """A `Server` on an event loop of its own; stopping it writes its checkpoint."""

    def __init__(self, **settings: Any) -> None:
        self._settings = server_settings(**({"bind": "127.0.0.1:0"} | settings))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server")
        self._stopped = False
        self.server: Server
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()

        async def start() -> int:
            self.server = Server(self._settings)
            return await self.server.start()

        try:
            self.port = self.run(start())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint's model, after `stop`."""
        assert self._settings.data_dir is not None
        return self._settings.data_dir / "latest" / "model.safetensors"

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            try:
                self.run(self.server.stop())
            finally:
                self._end_loop()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_AS_ON_A_TERMINAL = {"GEMPS_LOG_FORMAT": "human"}


class Process:
    """A child process with its output in a file; ended, if need be, when the test ends."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | _AS_ON_A_TERMINAL | environment,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, patience: float = PATIENCE) -> int:
        return self._process.wait(patience)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        self._process.terminate()

    def until_log_has(self, text: str) -> None:
        eventually(lambda: text in self.output or not self.is_running, lambda: self.output, patience=PATIENCE)
        assert text in self.output, self.output

    @property
    def output(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Processes:
    """Starts `gemps` commands and scripts in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Process] = []

    def start(self, name: str, *command: str, **environment: str) -> Process:
        child = Process([sys.executable, *command], self.folder / f"{name}.log", **environment)
        self._children.append(child)
        return child

    def gemps(self, name: str, *arguments: str, **environment: str) -> Process:
        return self.start(name, "-m", "gem_cli", *arguments, **environment)

    def serve(self, *arguments: str) -> tuple[Process, str]:
        """A server that ends with its run; its checkpoints are in `folder`/state. Returns it and its address."""
        ready = self.folder / "ready.json"
        server = self.gemps(
            "server", "serve", "--bind=127.0.0.1:0", f"--ready-file={ready}", f"--data-dir={self.folder / 'state'}",
            "--exit-when-finished", *arguments,
        )  # fmt: skip

        def is_ready() -> bool:
            assert server.is_running, server.output
            return ready.exists() and bool(ready.read_text().strip())

        eventually(is_ready, lambda: server.output, patience=PATIENCE)
        return server, json.loads(ready.read_text())["address"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "state" / "latest" / "model.safetensors"

    def end(self) -> None:
        for child in self._children:
            child.end()


@contextmanager
def processes_in(folder: Path) -> Iterator[Processes]:
    processes = Processes(folder)
    try:
        yield processes
    finally:
        processes.end()
