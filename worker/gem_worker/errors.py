"""What a worker can refuse or give up on. Errors of the connection come from `gem_worker.client`. Imports no torch."""

# So many steps in a row without a usable gradient end the training. GradScaler needs at most 16 to come down from its
# first scale of 65 536 to 1, so it is far from that.
MAX_SKIPPED_IN_A_ROW = 100


class UnsupportedModel(ValueError):  # noqa: N818 - named for what the user reads, as RunFinished is
    """The model holds something that cannot be trained through a parameter server; names the tensor and the fix."""


class Diverged(RuntimeError):  # noqa: N818
    """So many gradients in a row were not finite that training cannot recover by itself."""


class TaskError(ValueError):
    """A task, model or device that does not exist or cannot be loaded here; names what is missing and the fix."""
