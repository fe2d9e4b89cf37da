"""`serve`."""

import atexit
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Self

from gem_cli.options import explain, to_arguments, variable
from gem_cli.training.children import Child, gemps, terminate
from gem_cli.training.run_folder import RunFolder
from gem_server.settings import MAX_SOCKET_PATH_BYTES, ServerSettings
from gem_worker.client import ClientError, Observer
from pydantic import ValidationError

from gem_core.extras import PACKAGES, explain_missing
from gem_launch.tables import Table, table

POLL = 0.02  # seconds
STOP_SECONDS = 60.0  # draining, writing gigabytes

_log = logging.getLogger(__name__)


class ServerProcessError(RuntimeError):
    """The server failed; quotes its log."""


def serve(**settings: Any) -> "RunningServer":
    """Start a server, by default on a free port of 127.0.0.1.

        with gemps.serve(steps=200, data_dir="state") as server:
            print(server.address, server.status())

    Keywords: settings of `gemps serve`. It ends with the block, or this process. Raises TypeError (setting), ValueError
    (value), ServerProcessError.
    """
    return RunningServer(checked(settings))


class RunningServer:
    """Server from `serve`.

    `log`: in `data_dir`, or temporary.
    """

    def __init__(self, settings: ServerSettings) -> None:
        for name in PACKAGES["server"]:
            if find_spec(name) is None:
                raise ModuleNotFoundError(explain_missing(name, "server", "gemps.serve"), name=name)
        self.data_dir = settings.data_dir
        self._folder = None if self.data_dir is None else RunFolder(self.data_dir)
        if self._folder is not None:
            self._folder.logs.mkdir(parents=True, exist_ok=True)
        # Forked children would remove TemporaryDirectory.
        self._temporary = folder = Path(mkdtemp(prefix="gemps-"))
        own: dict[str, Any] = {"ready_file": folder / "server.json"}
        own |= {"bind": "127.0.0.1:0", "log_format": "human"}
        socket = folder / "memory"
        shares = sys.platform == "linux" and settings.state_type == "float32"
        if shares and len(os.fsencode(socket)) <= MAX_SOCKET_PATH_BYTES:
            own["shared_memory_socket"] = socket
        given = {name: getattr(settings, name) for name in settings.model_fields_set}
        given = own | {name: value for name, value in given.items() if value is not None}
        self.settings = ServerSettings(**given)
        self.log = folder / "server.log" if self._folder is None else self._folder.log("server")
        self._owner = os.getpid()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._child = Child(
            "the server", gemps("serve", *to_arguments(given)), self.log, environment={}, orphan_signal=signal.SIGTERM
        )
        atexit.register(self.close)
        try:
            self.address = self._await_ready(given["ready_file"])
        except BaseException:
            self._end()
            raise

    def __repr__(self) -> str:
        return f"<gemps server at {self.address}, {'running' if self.exit_code is None else self.explain_end()}>"

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None: running."""
        return self._child.exit_code

    def status(self) -> dict[str, Any]:
        """RunStatus (status.proto)."""
        with self._observer() as observer:
            return observer.get_status()

    def history(self) -> Table:
        """Intervals, as `LoadedRun.history`."""
        with self._observer() as observer:
            return table(observer.get_history().get("intervals", ()))

    def finish(self, reason: str = "finished from Python") -> None:
        """Finish the run."""
        with self._observer() as observer:
            observer.control("finish", reason)

    def close(self) -> None:
        """Stop; write settings and history to `data_dir`. Raises ServerProcessError."""
        if os.getpid() != self._owner:
            return  # forked
        try:
            if self._folder is not None and self._folder.path.is_dir():
                self._write_files(self._folder)
        except (OSError, ValueError) as error:
            _log.warning("%s: settings or history could not be written: %s", self.data_dir, error)
        finally:
            self._end()

    def explain_end(self) -> str:
        """Describe the end."""
        return self._child.describe_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ServerProcessError:
            if error is None:
                raise

    def _write_files(self, folder: RunFolder) -> None:
        if self._child.running:
            with contextlib.suppress(ClientError), self._observer() as observer:
                folder.add_metrics(observer.get_status())
                folder.write_history(observer.get_history())
        before = json.loads(folder.summary.read_text(encoding="utf-8")) if folder.summary.exists() else {}
        used = {**before.get("settings", {}), "server": self.settings.model_dump(mode="json")}
        folder.write_summary({**before, "seed": self.settings.seed, "settings": used})

    def _end(self) -> None:
        atexit.unregister(self.close)
        try:
            terminate([self._child], (signal.SIGTERM, STOP_SECONDS))
        finally:
            terminate([self._child], (signal.SIGKILL, 10.0))
            failed = self._child.exit_code != 0 and hasattr(self, "address")
            text = self.explain_end() if failed else ""
            shutil.rmtree(self._temporary, ignore_errors=True)
        if text:
            raise ServerProcessError(text)

    def _await_ready(self, ready: Path) -> str:
        while not ready.exists():
            if not self._child.running:
                said = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
                raise ServerProcessError(f"the server did not start: {said or self.explain_end()}")
            time.sleep(POLL)
        return str(json.loads(ready.read_text(encoding="utf-8"))["address"])

    def _observer(self) -> Observer:
        return Observer(self.address, on_event=lambda _: None)


def checked(settings: Mapping[str, Any]) -> ServerSettings:
    """Validate settings. Raises TypeError, ValueError."""
    known = ServerSettings.model_fields
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/settings.md lists them"
            raise TypeError(f"the server has no setting {name!r}: {hint}")
    try:
        return ServerSettings(**settings)
    except ValidationError as error:
        variables = {name: variable(ServerSettings, name) for name in known}
        origins = {name: f"{one}={os.environ[one]}" for name, one in variables.items() if one in os.environ}
        origins |= {name: f"{name}={value!r}" for name, value in settings.items()}
        raise ValueError("; ".join(explain(one, origins) for one in error.errors())) from None
