"""Default number of a server's staging buffers."""

DEFAULT_BUFFERS = 4
# For small models as many as fit.
SMALL_BUFFERS_BYTES = 1 << 20
_LEAST_BYTES = 1 << 12


def default_buffers(vector_bytes: int) -> int:
    """How many of `vector_bytes` a server has."""
    return max(DEFAULT_BUFFERS, SMALL_BUFFERS_BYTES // max(vector_bytes, _LEAST_BYTES))
