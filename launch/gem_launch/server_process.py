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
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Self

from gem_cli import gone
from gem_cli.errors import CommandError
from gem_cli.options import explain, to_arguments
from gem_cli.setting_keys import explicit, fields, flat, nested, variable
from gem_cli.training import shards as group
from gem_cli.training.children import Child, gemps, terminate, wait
from gem_cli.training.metrics_file import MetricsFile
from gem_cli.training.run_folder import RunFolder
from gem_server.settings import MAX_SOCKET_PATH_BYTES, ServerSettings
from gem_worker.client import ClientError, Observer
from gem_worker.client.settings import EXCHANGE_VARIABLES, ClientSettings
from pydantic import ValidationError

from gem_core.extras import PACKAGES, explain_missing
from gem_core.regular_files import read_text
from gem_core.shards import MAX_SHARDS
from gem_launch.tables import Table, table

POLL = 0.02  # seconds
STOP_SECONDS = 60.0  # draining, writing gigabytes
GROUP_SECONDS = 3.0  # a shard that fails ends the others
OF_WORKERS = {*EXCHANGE_VARIABLES, "every", "optimizer"}

_log = logging.getLogger(__name__)


class ServerProcessError(RuntimeError):
    """The server failed; quotes its log."""


def serve(*, shards: int = 1, **settings: Any) -> "RunningServer":
    """Start a server, by default on a free port of 127.0.0.1.

        with gemps.serve(steps=200, data_dir="state") as server:
            print(server.address, server.status())

    Keywords: settings of `gemps serve`, those of a table as a dict (`limits={"chunk_bytes": 65536}`); `shards`: number
    of servers. It ends with the block, or this process. Raises
    TypeError (setting), ValueError (value), ServerProcessError.
    """
    asked = checked(settings, shards)
    if asked.data_dir is not None and asked.part.count == shards:
        with _as_value_error():
            RunFolder(asked.data_dir).check_shards(shards)
    return RunningServer(asked, shards)


class RunningServer:
    """Server from `serve`, or all shards as one.

    `log`: in `data_dir`, or temporary.
    """

    def __init__(self, settings: ServerSettings, shards: int = 1) -> None:
        for name in PACKAGES["server"]:
            if find_spec(name) is None:
                raise ModuleNotFoundError(explain_missing(name, "server", "gemps.serve"), name=name)
        bind = settings.bind if "bind" in settings.model_fields_set else "127.0.0.1:0"
        if shards > 1:
            with _as_value_error():
                bind = group.with_port(bind)
        self.data_dir = settings.data_dir
        self._folder = None if self.data_dir is None else RunFolder(self.data_dir)
        data_dirs = [None] * shards if self._folder is None else self._folder.data_dirs(shards)
        if self._folder is not None:
            self._folder.logs.mkdir(parents=True, exist_ok=True)
        # Forked children would remove TemporaryDirectory.
        self._temporary = folder = Path(mkdtemp(prefix="gemps-"))
        own: dict[str, Any] = {"ready_file": folder / "server.json", "log_format": "human"}
        socket = folder / "memory"
        if sys.platform == "linux" and len(os.fsencode(group.shard_socket(socket, shards))) <= MAX_SOCKET_PATH_BYTES:
            own["shared_memory_socket"] = socket
        given = own | explicit(settings) | {"bind": bind}
        self.settings = ServerSettings(**nested(given))
        self.log = self._log("server")
        self._owner = os.getpid()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._children: list[Child] = []
        atexit.register(self.close)
        try:
            client = ClientSettings.from_environment()
            for index, one in enumerate(group.group_settings(self.settings, given, client, data_dirs)):
                name, log = (f"shard {index}", self._log(f"shard-{index}")) if index else ("the server", self.log)
                command = gemps("serve", *to_arguments(one))
                self._children.append(Child(name, command, log, environment={}, orphan_signal=signal.SIGTERM))
            self.address = self._await_ready(given["ready_file"])
        except BaseException:
            self._end()
            raise

    def __repr__(self) -> str:
        return f"<gemps server at {self.address}, {'running' if self.exit_code is None else self.explain_end()}>"

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._children[0].pid

    @property
    def exit_code(self) -> int | None:
        """None: running."""
        codes = [child.exit_code for child in self._children]
        return next((code for code in codes if code), None if None in codes else 0)

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
        if self._folder is not None and (shards := len(self._children)) > 1:
            trouble = group.merge(self._folder.data_dirs(shards), self._folder.path)
            if trouble:
                _log.warning("%s", trouble)

    def explain_end(self) -> str:
        """Describe the end."""
        failed = [child for child in self._children if child.exit_code]
        return "\n".join(child.describe_end() for child in failed or self._children[:1])

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
        if self.exit_code is None:
            with contextlib.suppress(ClientError), self._observer() as observer:
                MetricsFile(folder.metrics).append(observer.get_status())
                folder.write_history(observer.get_history())
        before = json.loads(read_text(folder.summary)) if folder.summary.exists() else {}
        used = {**before.get("settings", {}), "server": self.settings.model_dump(mode="json")}
        folder.write_summary({**before, "seed": self.settings.seed, "settings": used})

    def _end(self) -> None:
        atexit.unregister(self.close)
        try:
            if self.exit_code:
                wait(self._children, GROUP_SECONDS)
            terminate(self._children[::-1], (signal.SIGTERM, STOP_SECONDS))  # the first ends the others
        finally:
            terminate(self._children, (signal.SIGKILL, 10.0))
            failed = self.exit_code != 0 and hasattr(self, "address")
            text = self.explain_end() if failed else ""
            shutil.rmtree(self._temporary, ignore_errors=True)
        if text:
            raise ServerProcessError(text)

    def _await_ready(self, ready: Path) -> str:
        while not ready.exists():
            if self.exit_code is not None:
                wait(self._children, GROUP_SECONDS)
                said = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
                if len(self._children) > 1 or not said:
                    said = self.explain_end()
                raise ServerProcessError(f"the server did not start: {said}")
            time.sleep(POLL)
        return str(json.loads(ready.read_text(encoding="utf-8"))["address"])

    def _observer(self) -> Observer:
        return Observer(self.address, on_event=lambda _: None)

    def _log(self, name: str) -> Path:
        return self._temporary / f"{name}.log" if self._folder is None else self._folder.log(name)


def checked(settings: Mapping[str, Any], shards: int = 1) -> ServerSettings:
    """Validate settings. Raises TypeError, ValueError."""
    known = ServerSettings.model_fields
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"shards={shards!r}: give a number of servers from 1 to {MAX_SHARDS}")
    if shards > 1 and (several := sorted(group.OF_SHARDS & settings.keys())):
        raise TypeError(f"shards={shards} starts all servers: leave out {', '.join(several)}")
    for name in settings:
        if name not in known:
            hint = "docs/settings.md lists them"
            if name in OF_WORKERS:
                hint = "give it to ParameterServer"
            elif place := _place_in_table(name):
                hint = f"write {place}"
            elif name in gone.SETTINGS:
                hint = f"it is gone: {gone.SETTINGS[name].instead}"
            elif near := get_close_matches(name, known, n=1):
                hint = f"did you mean {near[0]!r}?"
            raise TypeError(f"the server has no setting {name!r}: {hint}")
    try:
        with _as_value_error():
            own = group.primary_settings(ServerSettings(**settings), ClientSettings.from_environment(), shards)
        return ServerSettings(**settings, **own)
    except ValidationError as error:
        variables = {key: variable(ServerSettings, key) for key in fields(ServerSettings)}
        origins = {name: f"{one}={os.environ[one]}" for name, one in variables.items() if one in os.environ}
        origins |= {key: f"{key}={value!r}" for key, value in flat(ServerSettings, settings).items()}
        raise ValueError(explain(error, origins)) from None


def _place_in_table(name: str) -> str:
    """How to give a setting that is in a table, whether it is named as there or as its variable; "" for others."""
    for key in fields(ServerSettings):
        table, _, inner = key.partition(".")
        if inner and name in (inner, f"{table}_{inner}"):
            return f"{table}={{'{inner}': ...}}"
    return ""


def require_either(server: object, settings: Mapping[str, Any], shards: int) -> None:
    """Raise TypeError for both a running server and what starts one."""
    if server is not None and (own := [*settings, *(["shards"] if shards != 1 else [])]):
        raise TypeError(f"the server runs and has its settings: leave out server=, or {', '.join(own)}")


@contextlib.contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        raise ValueError(str(error)) from None
