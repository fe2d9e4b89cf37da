"""Errors of the worker. Imports no torch."""

# Must exceed the 16 steps in which GradScaler may reduce its initial scale to 1.
MAX_SKIPPED_IN_A_ROW = 100
# RunFinishedErrors that a script may catch before its training block is ended. One or two can be a retry or a report.
MAX_IGNORED_ENDS = 3


class UnsupportedModelError(ValueError):
    """The model cannot be trained through a server; names tensor and fix."""


class UnsupportedOptimizerError(ValueError):
    """The optimizer, or the run, prevents local steps; names the fix."""


class DivergedError(RuntimeError):
    """Too many consecutive gradients were not finite."""


class IgnoredEndError(SystemExit):
    """The script caught RunFinishedError again and again; ends its block, or the script with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class TaskError(ValueError):
    """A task, model or device is unusable; names the fix."""
