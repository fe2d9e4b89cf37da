"""Measurements of gemps. Each module runs from the repository's root: `python -m benchmarks.NAME --help`."""
