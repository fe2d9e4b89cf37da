"""Shows warnings of workers, and of the server about workers, on the terminal of the program that started them.

Workers append their warnings to files (gem_worker/warning_file.py); the server's are in its status. A warning that
several workers have is shown once, with their names, so a new one waits GATHER_SECONDS for the others. Workers run the
script's own code, so nothing in the files is trusted: bytes and lines are bounded, and characters that could change the
terminal are replaced.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from gem_worker.warning_file import MOST_CHARACTERS, VARIABLE

from gem_cli.status_view import Status, printable, problem_text, problems, severity
from gem_cli.training.reporters import Reporter

# Workers come to the same line of a script within this time.
GATHER_SECONDS = 3.0
# Different warnings that one run shows.
MOST_SHOWN = 32
# Of one worker's file; its own bound (16 lines) is below this.
MOST_BYTES = 1 << 16
NAMES_SHOWN = 4
# Kinds of problems (status.proto) about what workers compute, and whose problems without workers are.
OF_SCRIPTS, THE_SERVER = frozenset({"same-batches", "quarantined", "same-deltas", "losses-not-finite"}), "the server"


class WorkerWarnings:
    """Collects warnings of a run's workers, and reports each once. Close it when the workers have ended."""

    def __init__(self, reporter: Reporter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._clock = clock
        self._folder = TemporaryDirectory(prefix="gemps-warnings-")
        self._read: dict[str, int] = {}
        self._waiting: dict[str, tuple[float, str, dict[str, None]]] = {}  # by key: since when, message, names
        self._shown: set[str] = set()

    def environment(self, worker: str) -> dict[str, str]:
        """Variables for this worker's process."""
        self._read.setdefault(worker, 0)
        return {VARIABLE: str(self._file(worker))}

    def poll(self) -> None:
        """Read what workers have written, and report what has waited for long enough."""
        for worker in self._read:
            for key, message in self._new_lines(worker):
                self._add(key, message, worker)
        now = self._clock()
        for key, (since, _, _) in [*self._waiting.items()]:
            if now - since >= GATHER_SECONDS:
                self._show(key)

    def status(self, status: Status) -> None:
        """Take problems from a report of the run: critical ones, and those about what workers compute.

        The others come and go with every worker that is restarted; `gemps status` has them.
        """
        for problem in problems(status):
            kind = str(problem.get("kind", ""))
            if kind in OF_SCRIPTS or severity(problem) == "CRITICAL":
                for worker in problem.get("workers", ()) or (THE_SERVER,):
                    self._add(kind, problem_text(problem), str(worker))

    def close(self) -> None:
        """Report everything, and delete the files."""
        self.poll()
        for key in [*self._waiting]:
            self._show(key)
        self._folder.cleanup()

    def _add(self, key: str, message: str, worker: str) -> None:
        if key in self._shown:
            return
        if key not in self._waiting:
            if len(self._shown) + len(self._waiting) >= MOST_SHOWN:
                return
            self._waiting[key] = self._clock(), message, {}
        self._waiting[key][2][worker] = None

    def _show(self, key: str) -> None:
        _, message, workers = self._waiting.pop(key)
        self._shown.add(key)
        names = [printable(name, 40) for name in sorted(workers)]
        text = printable(message.replace("\n", " "), MOST_CHARACTERS)
        self._reporter.event("warning", f"warning: {_listed(names)}: {text}", workers=names, warning=text)

    def _new_lines(self, worker: str) -> Iterator[tuple[str, str]]:
        start = self._read[worker]
        try:
            with self._file(worker).open("rb") as file:
                file.seek(start)
                new = file.read(MOST_BYTES - start)
        except OSError:  # there is none yet
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read[worker] += len(whole)
        for line in whole.splitlines():
            try:
                value = json.loads(line)
                key, message = value["key"], value["message"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if isinstance(key, str) and isinstance(message, str):
                yield key[:MOST_CHARACTERS], message[:MOST_CHARACTERS]

    def _file(self, worker: str) -> Path:
        return Path(self._folder.name) / f"{worker}.jsonl"


def _listed(names: list[str]) -> str:
    """List names: `worker-0`, `worker-0 and worker-1`, or `worker-0, worker-1, worker-2, worker-3 and 4 more`."""
    shown, more = names[:NAMES_SHOWN], len(names) - NAMES_SHOWN
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
