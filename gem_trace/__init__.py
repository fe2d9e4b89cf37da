"""Traces of runs."""

from gem_trace.format import DamageError, Record, read_records
from gem_trace.replay import Replayed, ReplayError, replay
from gem_trace.writer import TraceError, TraceWriter

__all__ = [
    "DamageError",
    "Record",
    "ReplayError",
    "Replayed",
    "TraceError",
    "TraceWriter",
    "read_records",
    "replay",
]
