"""Every error that gem_core raises on purpose.

All of them are ValueErrors about the caller's input (bytes, layouts, settings), but ThreadingError, which is about the
machine. None of them knows gRPC: the server has one table that turns them into status codes. Each message says what was
wrong and what to do about it, and is safe to send to whoever sent the input.
"""

__all__ = [
    "BadValueError",
    "ChecksumError",
    "ChunkError",
    "CoreError",
    "LayoutError",
    "RuleError",
    "SizeMismatchError",
    "ThreadingError",
    "WireTypeError",
]


class CoreError(ValueError):
    """Base of the errors about input; whoever made the input is at fault."""


class LayoutError(CoreError):
    """A layout is not legal in itself: a name, a shape, a type or the order of its tensors. Retrying does not help."""


class WireTypeError(CoreError):
    """A wire type that is unknown, or cannot be used for this. Retrying does not help."""


class ChunkError(CoreError):
    """A chunk is not contiguous, crosses the payload's end, is empty or too large, or is not cut at a border."""


class SizeMismatchError(CoreError):
    """A length or a count differs from what the layout, the header or the earlier chunks say."""


class BadValueError(CoreError):
    """A value that is not finite, is beyond the limit, or is illegal in its wire type. Retrying does not help."""


class ChecksumError(CoreError):
    """The bytes arrived, but not as they were sent: sending them again is expected to help."""


class RuleError(CoreError):
    """An update rule that does not exist, or a setting it does not know or cannot take."""


class ThreadingError(RuntimeError):
    """This machine has no threading layer that can run parallel kernels safely, or not as many threads as asked for."""
