"""The trace of a run: what happened to the central variable, in order, in one file; and the same done again from it.

What belongs here: the file's bytes, writing and reading them, the replay, and the order of turns. What must not: gRPC,
the server, a clock, an event loop. `DESIGN.md` beside this file has the events.
"""

from gem_trace.format import DamageError, Record, read_records
from gem_trace.order import Order, OrderError, read_order
from gem_trace.replay import Replayed, ReplayError, replay
from gem_trace.writing import TraceError, TraceWriter

__all__ = [
    "DamageError",
    "Order",
    "OrderError",
    "Record",
    "ReplayError",
    "Replayed",
    "TraceError",
    "TraceWriter",
    "read_order",
    "read_records",
    "replay",
]
