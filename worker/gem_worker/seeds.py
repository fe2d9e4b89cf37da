"""Random seeds of a worker."""


def dropout_seed(seed: int, rank: int) -> int:
    """Worker's torch seed, the same in each repetition."""
    return (seed * 1_000_003 + rank) % 2**63
