"""Ready file: exists while the server serves, fresh while its event loop runs."""

import asyncio
import json
import logging
import os
from pathlib import Path

from gem_server.errors import StartupError

RENEW_SECONDS = 5.0

logger = logging.getLogger(__name__)


class ReadyFile:
    """Belongs to one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        self._content = ""
        self._renewing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Check that the path is writable; remove a stale file. Raises StartupError."""
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
        """Write the file atomically, then touch it from the event loop."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        content = {"address": address, "port": port, "pid": os.getpid()}
        self._content = json.dumps(content | ({"dashboard": dashboard} if dashboard else {}))
        self._renewing = asyncio.create_task(self._write_and_renew())

    def withdraw(self) -> None:
        """Remove the file. Idempotent."""
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
        except FileNotFoundError:
            self._beside.write_text(self._content, encoding="utf-8")
            self._beside.replace(self._path)
