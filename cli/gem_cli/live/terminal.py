"""Full-screen terminal."""

import contextlib
import os
import select
import signal
import threading
from types import FrameType
from typing import Any, Self

from gem_worker.client import operating_system
from rich.console import Console
from rich.text import Text

from gem_cli.live.keys import Keys

# xterm, screen, tmux, Linux: alternate screen (1049), cursor (25), wrapping (7).
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[J"
# Linux's console has one screen: clear it.
_LEAVE = b"\x1b[0m\x1b[H\x1b[J\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME = b"\x1b[H"
_TERMINATED = 143  # 128 + SIGTERM
# Then it is the escape key.
_ESCAPE_SECONDS = 0.1


class Terminal:
    """Restores the terminal on exit, SIGTERM and Ctrl-Z.

    For the main thread, except `wake`.
    """

    def __init__(self, source: int, sink: int, encoding: str) -> None:
        self._source, self._sink, self._encoding = source, sink, encoding
        self._console = Console(highlight=False, emoji=False)
        self._keys = Keys()
        self._woken, self._wake = operating_system.wake_pipe()
        self._closing = threading.Lock()  # closed descriptors are reused
        self._is_closed = False
        self._modes: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._shown = b""

    def __enter__(self) -> Self:
        try:
            self._enter()
            resized, stopped = operating_system.terminal_signals()
            for number, handler in (
                (resized, self._resized),
                (signal.SIGTERM, self._terminated),
                (stopped, self._stopped),
            ):
                self._handlers[number] = signal.signal(number, handler)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)  # protects the cleanup
        try:
            self._leave()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            with self._closing:
                self._is_closed = True
                os.close(self._wake)
                os.close(self._woken)
        finally:
            signal.signal(signal.SIGINT, interrupts)

    @property
    def size(self) -> tuple[int, int]:
        """(columns, lines)."""
        columns, lines = os.get_terminal_size(self._sink)
        return columns or 80, lines or 24  # serial lines: 0

    def show(self, lines: list[Text]) -> None:
        """Draw a changed frame."""
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(lines), end="", soft_wrap=True)
        frame = _HOME + captured.get().encode(self._encoding, "replace").replace(b"\n", b"\r\n")
        if frame != self._shown:
            self._write(frame)
            self._shown = frame

    def wait(self, seconds: float) -> list[str] | None:
        """Keys on input, `wake` or timeout; None: end."""
        if self._keys.waits:
            seconds = min(seconds, _ESCAPE_SECONDS)
        ready, _, _ = select.select([self._source, self._woken], [], [], seconds)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if self._source not in ready:
            return self._keys.give_up() if not ready else []
        data = os.read(self._source, 4096)
        return self._keys.feed(data) if data else None

    def wake(self) -> None:
        """Make `wait` return."""
        with self._closing:
            if not self._is_closed:
                self._poke()

    def _poke(self) -> None:
        """Signal handlers must not lock."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def _enter(self) -> None:
        self._modes = operating_system.enter_cbreak(self._source)
        self._write(_ENTER)
        self._shown = b""

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        if self._modes:
            operating_system.restore_modes(self._source, self._modes)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._sink, data) :]

    def _resized(self, _: int, __: FrameType | None) -> None:
        self._shown = b""  # redraw
        self._poke()

    def _terminated(self, _: int, __: FrameType | None) -> None:
        raise SystemExit(_TERMINATED)

    def _stopped(self, _: int, __: FrameType | None) -> None:
        self._leave()
        operating_system.stop_this_process()
        self._enter()
        self._poke()
