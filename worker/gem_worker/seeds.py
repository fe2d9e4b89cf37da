"""Random seeds of a worker."""


def dropout_seed(seed: int, rank: int) -> int:
    """Return the worker's torch seed, the same in every repetition."""
    return (seed * 1_000_003 + rank) % 2**63
