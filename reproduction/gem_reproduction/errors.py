"""Errors of a reproduction."""


class ReproductionError(Exception):
    """Unknown figure, failed run, or unusable folder."""
