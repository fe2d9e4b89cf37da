"""What can be wrong with a simulation. Each message names the fix."""


class SimulationError(Exception):
    """A setting that makes no sense, or a trace that cannot be followed."""
