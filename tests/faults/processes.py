"""Server processes that are killed."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gem_cli.setting_keys import nested

from tests.forms import FULL
from tests.server_settings import keys
from tests.waiting import eventually_async
from tests.wire import serve_process
from tests.wire.calls import Trust
from tests.wire.model import LARGE, SMALL
from tests.wire.processes import START_PATIENCE, ServerProcess
from tests.wire.sharing import needs_shared_memory

# Both models by the stream, and the one that is large enough also through shared memory.
MODELS_AND_TRANSPORTS = [
    pytest.param(SMALL, False, id="small"),
    pytest.param(LARGE, False, id="large"),
    pytest.param(LARGE, True, id="large-shared", marks=needs_shared_memory),
]

TRANSPORTS = ("gRPC", "lane", "lane with TLS")
# The full form tries each of these over all transports, the quick one each over one.
EACH_OVER_TRANSPORTS = [
    pytest.param(*one.values, transport, id=f"{one.id}-{transport}", marks=one.marks)
    for number, one in enumerate(MODELS_AND_TRANSPORTS)
    for transport in (TRANSPORTS if FULL else TRANSPORTS[number : number + 1])
]


def over(shares: bool, transport: str = "") -> str:
    """For the figures."""
    return ", shared memory" * shares + f", {transport}" * bool(transport)


def count(few: int, full: int) -> int:
    """How often to try in the quick suite, and in the full one."""
    return full if FULL else few


async def start(
    directory: Path,
    program: ModuleType = serve_process,
    *,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> ServerProcess:
    """A server process on a data directory, which it resumes; `environment`: further variables."""
    assert program.__file__ is not None
    ready = directory.parent / f"{directory.name}-ready.json"
    ready.unlink(missing_ok=True)
    told: dict[str, Any] = {
        "bind": "127.0.0.1:0",
        "ready_file": str(ready),
        "data_dir": str(directory),
        "resume": True,
    }
    told |= dict(Trust.of_servers) | settings
    # A file: a pipe that nobody reads blocks the server when it is full.
    with log_of(directory).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            program.__file__,
            json.dumps(nested(keys(told))),
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    await eventually_async(lambda: ready.exists() or process.returncode is not None, patience=START_PATIENCE)
    assert ready.exists(), log_of(directory).read_text()
    return ServerProcess(json.loads(ready.read_text())["address"], process)


def log_of(directory: Path) -> Path:
    """What the servers on this data directory logged, one after the other."""
    return directory.parent / f"{directory.name}.log"


async def kill(server: ServerProcess) -> None:
    """SIGKILL."""
    server.process.kill()
    await server.process.wait()
    await server.close()
