"""The gemps server."""

__version__ = "0.1.0"
