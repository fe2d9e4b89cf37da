"""A payload on its way out: messages made while gRPC takes them, so that one chunk at a time is in memory."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from gemps.framing import Buffer, before_chunk
from gemps.v1 import transfer_pb2

from gem_core.checksum import crc32c
from gem_core.payload import PayloadFormat

# One message, in pieces: bytes of the payload stay where they are until the message is sent.
Message: TypeAlias = tuple[Buffer, ...]


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


def count_chunks(format_: PayloadFormat, chunk_bytes: int) -> int:
    """How many chunks the payload makes."""
    return sum(1 for _ in format_.cut(chunk_bytes))


def payload_footer(format_: PayloadFormat, chunk_count: int, crc32c: int) -> transfer_pb2.Footer:
    """The footer of a payload."""
    return transfer_pb2.Footer(byte_count=format_.byte_count, chunk_count=chunk_count, crc32c=crc32c)


def chunk_messages(
    payload: memoryview,
    format_: PayloadFormat,
    chunk_bytes: int,
    field: int,
    *,
    first: bytes,
    last: Callable[[int], bytes],
    on_message: Callable[[], None],
    on_last: Callable[[], None],
) -> Iterator[Message]:
    """The messages of a payload, each with one chunk in `field`.

    `first` and `last` are other fields, serialised, that the first and the last message hold too (the header, the
    footer). `last` makes them when it is told the CRC32C of the payload, which is summed up chunk by chunk on the way:
    sending then finds the chunk in the cache. `on_message` is called whenever a message is asked for, that is, when the
    one before has been taken; `on_last` just before the last is handed over. All are called in the thread that asks,
    which may be gRPC's.
    """
    if not format_.byte_count:
        on_last()
        yield (first + last(0),)
        return
    checksum = 0
    for offset, end in format_.cut(chunk_bytes):
        on_message()
        data = payload[offset:end]
        checksum = crc32c(data, checksum)
        rest = first if offset == 0 else b""
        if end == format_.byte_count:
            on_last()
            rest += last(checksum)
        yield before_chunk(rest, field, offset, end - offset), data


def scaled(delta: memoryview, scale: float, payload: PayloadFormat) -> memoryview:
    """A copy of a FLOAT32 payload whose PARAMETERs are multiplied by `scale`, rounded to float32."""
    copy = bytearray(delta)
    values = np.frombuffer(copy, np.float32, payload.layout.parameter_count)
    np.multiply(values, np.float32(scale), out=values)
    return memoryview(copy)
