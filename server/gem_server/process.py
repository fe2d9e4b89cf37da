"""The server as a process."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable

from gem_server.durability.files import Files, StorageError
from gem_server.errors import StartupError
from gem_server.lifecycle import freeze_garbage
from gem_server.process_memory import keep_what_messages_used
from gem_server.server import Server
from gem_server.settings import ServerSettings

logger = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_CANNOT_START = 0, 1, 2


def run_server(settings: ServerSettings) -> int:
    """Run a server; return the exit code: 0 clean, 1 failure, 2 cannot start.

    SIGTERM, SIGINT and SIGHUP drain it; SIGHUP not where it is ignored.
    """
    keep_what_messages_used()
    _raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(run(settings))
    except StartupError as error:
        print(f"gemps: {error}", file=sys.stderr)
        return EXIT_CANNOT_START


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Small models cost less CPU with uvloop (docs/benchmarks.md)."""
    try:
        import uvloop
    except ImportError:  # Windows, or left out
        return None
    return uvloop.new_event_loop


def _raise_descriptor_limit() -> None:
    """A worker uses up to nine descriptors."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _stop_signals() -> list[signal.Signals]:
    """Signals that drain a server. A terminal that closes sends SIGHUP, which nohup has a process ignore."""
    hang_up = [] if sys.platform == "win32" else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *(one for one in hang_up if signal.getsignal(one) is not signal.SIG_IGN)]


async def run(settings: ServerSettings, files: Files | None = None) -> int:
    """Run a server in the running event loop. Raises StartupError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _stop_signals():
        with contextlib.suppress(NotImplementedError):  # Windows: KeyboardInterrupt ends asyncio.run
            loop.add_signal_handler(number, stop.set)
    server = Server(settings, files=files)
    starting = asyncio.create_task(server.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return EXIT_OK
    await starting
    freeze_garbage()
    finished = asyncio.create_task(server.wait_until_done())
    await asyncio.wait([finished, stopping], return_when=asyncio.FIRST_COMPLETED)
    code = EXIT_OK
    if finished.done() and finished.exception() is not None:
        code = EXIT_FAILED
    else:
        finished.cancel()
    stopping.cancel()
    try:
        await server.stop()
    except (OSError, StorageError) as error:
        logger.critical(
            "the last checkpoint could not be written: %s; %s", error, server.persistence.describe_unsaved()
        )
        code = EXIT_FAILED
    return code
