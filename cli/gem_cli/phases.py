"""Says on stderr what a program is busy with before its first result."""

import sys
import threading
from collections.abc import Callable

# A phase that is over sooner is not worth a line.
SECONDS = 1.0


def print_to_stderr(text: str) -> None:
    """Print a line about gemps itself, where stdout is the user's."""
    print(f"gemps: {text}", file=sys.stderr, flush=True)


class Phases:
    """Prints one line for each phase that lasts longer than `SECONDS`.

    A thread prints it, because what takes long, an import or a compilation, does not return in between. `enter`, `end`
    and `elapse` may be called on any thread.
    """

    def __init__(self, say: Callable[[str], None] = print_to_stderr) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._name = ""
        self._text = ""
        self._timer: threading.Timer | None = None

    def enter(self, name: str, text: str) -> None:
        """Begin a phase, which ends the one before. A further text of the same name replaces one not printed yet."""
        with self._lock:
            self._text = text
            if name == self._name:
                return
            self._name = name
            self._cancel()
            self._timer = threading.Timer(SECONDS, self.elapse, args=(name,))
            self._timer.daemon = True
            self._timer.start()

    def elapse(self, name: str) -> None:
        """Print the phase of this name, if it still lasts and was not printed."""
        with self._lock:
            if name == self._name and self._timer is not None:
                self._timer = None
                self._say(self._text)

    def end(self) -> None:
        """End the phase that was entered last, so that nothing more is printed about it."""
        with self._lock:
            self._name = ""
            self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
