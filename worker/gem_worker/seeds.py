"""What a worker's random numbers follow from: the run's seed and its rank, so that a run can be repeated."""


def dropout_seed(seed: int, rank: int) -> int:
    """For torch's generator, once, before the first step: every worker drops other units, the same in every repetition.

    The order of a worker's samples follows from the same two numbers (tasks/samples.py, `epoch_order`).
    """
    return (seed * 1_000_003 + rank) % 2**63
