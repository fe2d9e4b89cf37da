"""Payloads that are one chunk, as those of small models are: in one go what split.py and assemble.py do by chunks.

There a payload costs a dozen calls before the first byte is looked at; for some thousands of parameters those are most
of the time. What is not as it should be is left to assemble.py, which alone says what is wrong with it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gem_core.checksum import crc32c
from gem_core.chunking.assemble import DecodingAssembler
from gem_core.errors import SizeMismatchError
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_core.wire_types import NUMPY, Codec

__all__ = ["decode_whole", "encode_whole"]


def encode_whole(
    payload: PayloadFormat, parameters: NDArray[np.float32], rest: bytes | memoryview, codec: Codec = NUMPY
) -> tuple[memoryview, int]:
    """All bytes of a payload, and their CRC32C; arguments as `Splitter`'s.

    FLOAT32 without a rest gives a view of `parameters`.

    Raises:
        SizeMismatchError: `parameters` or `rest` is not of the payload's size.
    """
    data = codec.encode(payload.wire_type, parameters)
    if payload.rest_bytes:
        data = memoryview(b"".join((data, rest)))
    if data.nbytes != payload.byte_count:
        raise SizeMismatchError(
            f"{parameters.size} parameters, and {len(rest)} bytes behind them, make {data.nbytes} bytes; "
            f"this payload has {payload.byte_count}"
        )
    return data, crc32c(data)


def decode_whole(
    payload: PayloadFormat,
    data: memoryview,
    footer: tuple[int, int, int],
    parameters: NDArray[np.float32],
    rest: memoryview,
    codec: Codec = NUMPY,
) -> None:
    """Take in a payload that came as one chunk at offset 0, with its footer: byte count, chunk count, CRC32C.

    `parameters` and `rest`, which are `DecodingAssembler`'s, may be used only when this returns.

    Raises:
        ChunkError, SizeMismatchError, ChecksumError, BadValueError: as `DecodingAssembler` does.
    """
    size = payload.byte_count
    if (
        not payload.rest_bytes
        and data.nbytes == size <= MAX_CHUNK_BYTES
        and parameters.size == payload.layout.parameter_count
        and footer == (size, 1, crc32c(data))
        and codec.decode(payload.wire_type, data, parameters) is None
    ):
        return
    assembler = DecodingAssembler(payload, parameters, rest, codec)
    assembler.add(0, data)
    assembler.finish(*footer)
