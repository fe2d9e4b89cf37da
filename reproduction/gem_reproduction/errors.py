"""What can be wrong with a reproduction. Each message names the fix."""


class ReproductionError(Exception):
    """There is no such figure, a run cannot be done, or its folder cannot be used."""
