"""The ready file: there while the server serves, and fresh as long as its event loop runs.

For supervisors and health checks that should neither start a program nor open a port. It knows nothing of the server.
"""

import asyncio
import json
import logging
import os
from pathlib import Path

from gem_server.errors import StartupError

# Seconds between two renewals: one write of metadata, and often enough for a check that looks every ten seconds or so.
RENEW_SECONDS = 5.0

logger = logging.getLogger(__name__)


class ReadyFile:
    """One file: `prepare`, then `announce`, then `withdraw`; all on one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        self._content = ""
        self._renewing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Remove what a killed server left, and make sure that the file can be written. Raises StartupError."""
        try:
            self._path.unlink(missing_ok=True)
            self._beside.touch()
            self._beside.unlink()
        except OSError as error:
            raise StartupError(
                f"--ready-file {self._path} cannot be written: {error.strerror}; name a file in a directory that "
                "exists and is this user's"
            ) from error

    def announce(self, host: str, port: int, dashboard: str = "") -> None:
        """Write address, port, this process's id, and where a dashboard is, in one step; then touch the file often.

        The event loop touches it: when that hangs, the file grows old.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        content = {"address": address, "port": port, "pid": os.getpid()}
        self._content = json.dumps(content | ({"dashboard": dashboard} if dashboard else {}))
        self._renewing = asyncio.create_task(self._write_and_renew())

    def withdraw(self) -> None:
        """Remove the file, for good. Harmless a second time."""
        if self._renewing is not None:
            self._renewing.cancel()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("--ready-file %s cannot be removed: %s", self._path, error.strerror)

    async def _write_and_renew(self) -> None:
        failing = False
        while True:
            try:
                self._renew()
            except OSError as error:
                if not failing:
                    logger.warning("--ready-file %s cannot be written: %s", self._path, error.strerror)
                failing = True
            else:
                failing = False
            await asyncio.sleep(RENEW_SECONDS)

    def _renew(self) -> None:
        try:
            os.utime(self._path)
        except FileNotFoundError:  # the first time, or somebody has removed it
            self._beside.write_text(self._content, encoding="utf-8")
            self._beside.replace(self._path)
