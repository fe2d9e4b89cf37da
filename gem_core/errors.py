"""Errors of gem_core. Messages are safe to send to the peer."""

__all__ = [
    "BadValueError",
    "ChecksumError",
    "ChunkError",
    "CoreError",
    "LayoutError",
    "RecipeError",
    "RuleError",
    "SelectionError",
    "SizeMismatchError",
    "ThreadingError",
    "WireTypeError",
]


class CoreError(ValueError):
    """Base class of input errors."""


class LayoutError(CoreError):
    """Illegal tensor name, shape, type or order."""


class WireTypeError(CoreError):
    """Unknown or unsuitable wire type."""


class ChunkError(CoreError):
    """Illegal position, size or border of a chunk."""


class SelectionError(CoreError):
    """Illegal selection of BUFFERs."""


class SizeMismatchError(CoreError):
    """Length or count that contradicts layout, header or earlier chunks."""


class BadValueError(CoreError):
    """Value that is not finite, out of range or illegal in its wire type."""


class ChecksumError(CoreError):
    """Checksum mismatch; retryable."""


class RuleError(CoreError):
    """Unknown update rule, or illegal setting."""


class RecipeError(CoreError):
    """Illegal recipe of an optimizer, or decays that do not fit it."""


class ThreadingError(RuntimeError):
    """No safe threading layer, or too few threads."""
