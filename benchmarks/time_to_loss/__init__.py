"""Seconds until a model is good, for gemps and what else trains on several machines; docs/benchmarks.md."""
