"""What a worker can refuse or give up on. Errors of the connection come from `gem_worker.client`. Imports no torch."""


class UnsupportedModel(ValueError):  # noqa: N818 - named for what the user reads, as RunFinished is
    """The model holds something that cannot be trained through a parameter server; names the tensor and the fix."""


class Diverged(RuntimeError):  # noqa: N818
    """So many gradients in a row were not finite that training cannot recover by itself."""


class TaskError(ValueError):
    """A task, model or device that does not exist or cannot be loaded here; names what is missing and the fix."""
