"""Errors of a simulation; messages name the fix."""


class SimulationError(Exception):
    """An invalid setting or unusable trace."""
