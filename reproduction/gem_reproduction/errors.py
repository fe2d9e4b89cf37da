"""Errors of a reproduction; messages name the fix."""


class ReproductionError(Exception):
    """Unknown figure, failed run, or unusable folder."""
