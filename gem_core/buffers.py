"""Default number of a server's staging buffers."""

from gem_core.thresholds import SMALL_BUFFERS_BYTES, SMALL_VECTOR_BYTES

DEFAULT_BUFFERS = 4


def default_buffers(vector_bytes: int) -> int:
    """How many of `vector_bytes` a server has; for small models as many as SMALL_BUFFERS_BYTES holds."""
    return max(DEFAULT_BUFFERS, SMALL_BUFFERS_BYTES // max(vector_bytes, SMALL_VECTOR_BYTES))
