"""A payload on its way out: messages made while gRPC takes them, so that one chunk at a time is in memory."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from gemps.framing import Buffer, before_chunk
from gemps.v1 import transfer_pb2
from numpy.typing import NDArray

from gem_core.checksum import crc32c
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType

# One message, in pieces: bytes of the payload stay where they are until the message is sent.
Message: TypeAlias = tuple[Buffer, ...]

# Summed up at once where nothing is sent: it stays in a core's cache.
_PIECE_BYTES = 1 << 20


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


class Source:
    """A payload that is about to be sent, perhaps more than once: the same bytes each time.

    Args:
        payload: its bytes; they must not change meanwhile.
        format_: what they are.
        scale: of a FLOAT32 payload: each PARAMETER that is sent is this number times the one in `payload`, rounded to
            float32; a piece is multiplied just before it is sent, while it is in the cache.
    """

    def __init__(self, payload: memoryview, format_: PayloadFormat, scale: float | None = None) -> None:
        self._payload = payload
        self._format = format_
        self._scale = np.float32(scale) if scale is not None else None

    def pieces(self, piece_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Offset and bytes of pieces as chunks are cut. A piece is valid until the next one is asked for."""
        scale = self._scale
        scratch = np.empty(min(piece_bytes, self._format.byte_count) if scale is not None else 0, np.uint8)
        for start, stop in self._format.cut(piece_bytes):
            piece = self._payload[start:stop]
            yield start, piece if scale is None else self._scaled(start, piece, scale, scratch)

    def crc32c(self) -> int:
        """Of all that is sent."""
        checksum = 0
        for _, piece in self.pieces(_PIECE_BYTES):
            checksum = crc32c(piece, checksum)
        return checksum

    def whole(self) -> memoryview:
        """All of it in one piece, a copy where there is a scale."""
        if self._scale is None:
            return self._payload
        return self._scaled(0, self._payload, self._scale, np.empty(self._format.byte_count, np.uint8))

    def _scaled(self, start: int, piece: memoryview, scale: np.float32, into: NDArray[np.uint8]) -> memoryview:
        """A piece that begins at the border `start`, as it is sent: at the beginning of `into`."""
        count = min(max(0, self._format.parameter_bytes - start), piece.nbytes)
        np.multiply(np.frombuffer(piece[:count], np.float32), scale, out=into[:count].view(np.float32))
        into[count : piece.nbytes] = np.frombuffer(piece[count:], np.uint8)
        return into[: piece.nbytes].data


class SmallSource:
    """Small payloads of one format on their way out, one after the other: each in one piece, in the same memory."""

    def __init__(self, format_: PayloadFormat) -> None:
        memory = np.empty(format_.byte_count, np.uint8)
        self._split = format_.parameter_bytes
        self._has_rest = format_.rest_bytes > 0
        self._parameters = memory[: self._split].view(np.float32) if format_.wire_type is WireType.FLOAT32 else None
        self._memory = memory.data

    def take(self, payload: memoryview, scale: float | None) -> memoryview:
        """What is sent of this payload; arguments as `Source`'s. Valid until the next one, and while this one is."""
        if scale is None:
            return payload
        if self._parameters is None:
            raise AssertionError("a scale needs a payload of float32")
        np.multiply(np.frombuffer(payload, np.float32, self._parameters.size), np.float32(scale), self._parameters)
        if self._has_rest:
            self._memory[self._split :] = payload[self._split :]
        return self._memory


def chunk_messages(
    source: Source,
    format_: PayloadFormat,
    chunk_bytes: int,
    field: int,
    *,
    first: bytes,
    last: Callable[[int], bytes],
    on_message: Callable[[], None],
    on_last: Callable[[], None],
) -> Iterator[Message]:
    """The messages of a payload, each with one chunk in `field`; each is valid until the next one is asked for.

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
    for offset, data in source.pieces(chunk_bytes):
        on_message()
        checksum = crc32c(data, checksum)
        rest = first if offset == 0 else b""
        if offset + data.nbytes == format_.byte_count:
            on_last()
            rest += last(checksum)
        yield before_chunk(rest, field, offset, data.nbytes), data
