"""Outgoing payloads, one chunk in memory at a time."""

import time
from collections.abc import Iterator
from typing import TypeAlias

from gemps.framing import Buffer, HasFooter, payload_messages

from gem_core.chunking import Source
from gem_core.payload import PayloadFormat
from gem_worker.client.watchdog import Watched

# Bytes before the data, the data (not copied), whether it is the last.
ChunkMessage: TypeAlias = tuple[bytes, Buffer, bool]


def byte_view(buffer: memoryview, format_: PayloadFormat, what: str, *, writable: bool = False) -> memoryview:
    """`buffer` as bytes. Raises ValueError if unsuitable."""
    view = memoryview(buffer)
    if writable and view.readonly:
        raise ValueError(f"{what} must be writable: parameters are received into it")
    if not view.c_contiguous:
        raise ValueError(f"{what} must be contiguous in memory")
    if view.nbytes != format_.byte_count:
        raise ValueError(
            f"{what} has {view.nbytes} bytes; "
            f"a payload of this model in {format_.wire_type.name} has {format_.byte_count}"
        )
    return view.cast("B") if view.nbytes else memoryview(b"")


def watched_messages(
    source: Source, field: int, first: HasFooter, watched: Watched, *, sequence: int = 0
) -> Iterator[ChunkMessage]:
    """Generate messages, possibly in gRPC's thread.

    Before the last one, marks `watched` as waiting on `sequence`.
    """
    for message in payload_messages(source, field, source.payload.byte_count, first):
        watched.progressed_at = time.monotonic()
        if message[2]:
            watched.sequence, watched.waiting = sequence, True
        yield message
