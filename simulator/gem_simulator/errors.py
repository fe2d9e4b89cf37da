"""Simulation errors; messages name the fix."""


class SimulationError(Exception):
    """An invalid setting or unusable trace."""
