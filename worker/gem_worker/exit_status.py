"""The exit status of a script that ends by an error of its worker.

Supervisors restart a process that has failed. `gemps train`, `gemps launch` (Ray, Slurm and Spark), the systemd units
and the Helm chart do not restart a worker that ends with one of two statuses: FINAL, because neither waiting nor a
restart would help, and FINISHED_BEFORE, because the run was finished before this worker reached it for the first time.

Python ends with FAILED after any error that the script does not catch, and only `sys.excepthook` can change that. So a
`ParameterServer` wraps this hook. The hook that was there before prints the traceback, and all other errors end the
script with FAILED as before. Nothing changes in interactive sessions, and for errors that the script catches.
"""

import sys
from types import TracebackType

from gem_worker.client import ClientError, FinishedBeforeError

# 3 has a meaning for workers under the conformance kit (docs/protocol.md).
FAILED, FINAL, FINISHED_BEFORE = 1, 2, 4


def status_of(error: BaseException) -> int:
    """The exit status of a process that this error ends (docs/command-line.md)."""
    if isinstance(error, FinishedBeforeError):
        return FINISHED_BEFORE
    return FINAL if isinstance(error, ClientError) and error.is_final else FAILED


def end_with_status() -> None:
    """Have the process end with the status of the error that nothing catches. Later calls do nothing."""
    if hasattr(sys, "ps1") or isinstance(sys.excepthook, _Hook):
        return
    sys.excepthook = _Hook()


class _Hook:
    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._before(kind, error, traceback)
        status = status_of(error)
        if status != FAILED:
            raise SystemExit(status)
