"""Hands this process's warnings to the program that started it: gemps train or gemps.launch.

That program names a file in GEMPS_WARNINGS_FILE, a different one for each worker, and shows on its terminal what it
reads there. This module appends to the file what gemps's own loggers warn of, as one JSON object a line. What the
script itself warns of, by `warnings.warn` or its own loggers, is not handed over: it stays in the worker's log. The
number of lines and their length are bounded here, and again by the reader, which does not trust the file.
"""

import json
import logging
import os

from typing_extensions import override

VARIABLE = "GEMPS_WARNINGS_FILE"
LOGGERS = ("gem_worker", "gemps")
# Different warnings of one process; a training that is well has none.
MOST_WARNINGS = 16
# The longest warning of gemps has about 500 characters, besides names of tensors.
MOST_CHARACTERS = 1000


class WarningFile(logging.Handler):
    """Appends each different warning to `path` once.

    With `echo`, a warning that no other handler would print still goes to stderr, as Python does without any handler.
    Errors of the file are ignored: a warning must not end a training.
    """

    def __init__(self, path: str, *, echo: bool) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._echo = echo
        self._written: set[str] = set()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._echo and logging.lastResort is not None and not self._has_company(record.name):
            logging.lastResort.handle(record)
        try:
            message = record.getMessage()[:MOST_CHARACTERS]
            # The text without its figures, so that "(3 so far)" is no other warning than "(2 so far)".
            key = (message if record.msg == "%s" else str(record.msg))[:MOST_CHARACTERS]
            if key in self._written or len(self._written) >= MOST_WARNINGS:
                return
            self._written.add(key)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "message": message}) + "\n")
        except (OSError, TypeError, ValueError):
            return

    def _has_company(self, name: str) -> bool:
        """Whether another handler prints records of this logger."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(one is not self for one in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def hand_over_warnings(*, echo: bool = True) -> None:
    """Attach a WarningFile to gemps's loggers, once per process, if GEMPS_WARNINGS_FILE is set."""
    path = os.environ.get(VARIABLE)
    if not path or any(isinstance(one, WarningFile) for one in logging.getLogger(LOGGERS[0]).handlers):
        return
    handler = WarningFile(path, echo=echo)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
