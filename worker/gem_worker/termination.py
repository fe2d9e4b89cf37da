"""The handler of SIGTERM, and of SIGHUP, which the end of a terminal sends.

If the process ignores SIGHUP when the block begins, as under nohup, it is still ignored within the block.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

from gem_worker.client.operating_system import CHILD_ENDED, Terminals, end_signals

# For commits; half for Leave. Grace periods are 10 to 30 s.
COMMIT_SECONDS = 4.0
_REMINDER = 0.1  # seconds
_SAME_SECONDS = 1.0  # group and process


class TerminatedError(SystemExit):
    """SIGTERM or SIGHUP arrived. Indexed Jobs restart no index that exits with 0."""

    def __init__(self) -> None:
        super().__init__(143 if "JOB_COMPLETION_INDEX" in os.environ else 0)


class _Termination:
    def __init__(self) -> None:
        self._since: float | None = None
        self._received: float | None = None
        self._uses = 0
        self._pid = 0
        self._signals: list[signal.Signals] = []  # those that it handles
        self._terminals = Terminals()
        self._hold: tuple[float, Callable[[], object] | None] | None = None
        self._lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def has_begun(self) -> bool:
        return self._since is not None

    @property
    def is_held(self) -> bool:
        return self._hold is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_repeated = self._received is not None and now >= self._received + _SAME_SECONDS
        if number != signal.SIGTERM:  # the kernel and the shell may both report the end of a terminal
            is_repeated = False
            self._terminals.replace_closed()
        if is_repeated or os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._received is None:
            self._received = now
            if CHILD_ENDED is not None:  # PyTorch's raises if DataLoader workers got SIGTERM
                signal.signal(CHILD_ENDED, signal.SIG_DFL)
            self._begin()
            if self._hold is None:
                raise TerminatedError

    @contextmanager
    def begun(self) -> Iterator[None]:
        self._ensure_started()
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def handled(self) -> Iterator[None]:
        if not _in_main_thread() or (not self._uses and signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, self)):
            yield
            return
        if not self._uses:
            self._ensure_started()
            self._pid, self._received = os.getpid(), None
            self._signals = [one for one in end_signals() if signal.getsignal(one) in (signal.SIG_DFL, self)]
            for number in self._signals:
                signal.signal(number, self)
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            if not self._uses:
                for number in self._signals:
                    if self._received is None and signal.getsignal(number) is self:
                        signal.signal(number, signal.SIG_DFL)
                self._end()

    @contextmanager
    def held(self, seconds: float = 0.0, give_up: Callable[[], object] | None = None) -> Iterator[None]:
        """Raise at the outermost block's end; repeat `give_up` from `seconds` after SIGTERM."""
        if not _in_main_thread():
            yield
            return
        outer = self._hold
        self._hold = (seconds, give_up)
        try:
            yield
        finally:
            if self._since is None:
                self._hold = outer
            else:
                with self._lock:
                    self._hold = outer
            if outer is None and self._since is not None:
                raise TerminatedError

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._wake.put(None)

    def _end(self) -> None:
        with self._lock:
            self._since = None

    def _ensure_started(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="gemps-termination", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.get()
            while self._remind():
                time.sleep(_REMINDER)

    def _remind(self) -> bool:
        with self._lock:
            if self._since is None:
                return False
            if self._hold is not None:
                seconds, give_up = self._hold
                if give_up is not None and time.monotonic() >= self._since + seconds:
                    give_up()
            return True


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


termination = _Termination()
