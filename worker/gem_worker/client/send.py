"""A payload on its way out: messages made while the transport takes them, so that one chunk at a time is in memory."""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from gemps.framing import Buffer, chunk_messages
from gemps.v1 import transfer_pb2

from gem_core.chunking import Source
from gem_core.payload import PayloadFormat
from gem_worker.client.watchdog import Watched

# One message: what precedes the data of its chunk, the data, which stays where it is until the message is sent, and
# whether it ends a payload.
ChunkMessage: TypeAlias = tuple[bytes, Buffer, bool]


class Request(Protocol):
    """A message that can begin and end a payload."""

    footer: transfer_pb2.Footer

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Its bytes."""


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


def payload_messages(
    source: Source, field: int, first: Request, watched: Watched, *, sequence: int = 0
) -> Iterator[ChunkMessage]:
    """The messages of a payload, each with one chunk in `field`; each is valid until the next one is asked for.

    `first` has the other fields of the first message. The last one has the footer; before it is handed over, `watched`
    notes that the server has the next word, on the commit `sequence`. The iterator may run in gRPC's thread.
    """

    def fields(is_first: bool, is_last: bool) -> bytes:
        watched.progress()
        if not (is_first or is_last):
            return b""
        message = first if is_first else type(first)()
        if is_last:
            watched.sequence, watched.waiting = sequence, True
            footer = message.footer
            footer.byte_count = source.payload.byte_count
            footer.chunk_count, footer.crc32c = source.chunk_count, source.crc32c
        return message.SerializeToString()

    return chunk_messages(source, field, source.payload.byte_count, fields)
