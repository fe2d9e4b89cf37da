"""A payload on its way out: messages made while the transport takes them, so that one chunk at a time is in memory."""

from collections.abc import Iterator
from typing import TypeAlias

from gemps.framing import Buffer, HasFooter, payload_messages

from gem_core.chunking import Source
from gem_core.payload import PayloadFormat
from gem_worker.client.watchdog import Watched

# One message: what precedes the data of its chunk, the data, which stays where it is until the message is sent, and
# whether it ends a payload.
ChunkMessage: TypeAlias = tuple[bytes, Buffer, bool]


def byte_view(buffer: memoryview, format_: PayloadFormat, what: str, *, writable: bool = False) -> memoryview:
    """`buffer` as bytes. Raises ValueError unless it is contiguous, of the payload's size, and writable if need be."""
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
    """`payload_messages` of `source`. The iterator may run in gRPC's thread.

    Before the last message is handed over, `watched` notes that the server has the next word, on the commit `sequence`.
    """
    for message in payload_messages(source, field, source.payload.byte_count, first):
        watched.progress()
        if message[2]:
            watched.sequence, watched.waiting = sequence, True
        yield message
