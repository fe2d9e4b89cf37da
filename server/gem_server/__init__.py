"""The gemps server; see DESIGN.md."""

__version__ = "0.1.0"
