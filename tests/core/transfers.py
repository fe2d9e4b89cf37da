"""A small model with everything that makes a payload awkward, and a transfer of it that the tests can damage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gem_core import (
    Assembler,
    DecodingAssembler,
    ElementType,
    Layout,
    PayloadFormat,
    RawAssembler,
    Splitter,
    TensorKind,
    TensorSpec,
    WireType,
)

ENCODED = [WireType.FLOAT32, WireType.BFLOAT16, WireType.INT4_BLOCK]


def awkward_layout() -> Layout:
    """900 parameters in four tensors; buffers of every type, unaligned after an odd number of bytes; one frozen."""
    parameter, buffer = TensorKind.PARAMETER, TensorKind.BUFFER
    return Layout(
        [
            TensorSpec("weight", (20, 40), ElementType.FLOAT32, parameter),
            TensorSpec("empty", (0, 7), ElementType.FLOAT32, parameter),
            TensorSpec("scale", (), ElementType.FLOAT64, parameter),
            TensorSpec("bias", (99,), ElementType.FLOAT16, parameter),
            TensorSpec("mask", (3,), ElementType.BOOL, buffer),
            TensorSpec("mean", (5,), ElementType.FLOAT32, buffer),
            TensorSpec("variance", (5,), ElementType.FLOAT32, buffer),
            TensorSpec("nothing", (0,), ElementType.INT64, buffer),
            TensorSpec("steps", (), ElementType.INT64, buffer),
            TensorSpec("half", (3,), ElementType.BFLOAT16, buffer),
            TensorSpec("flags", (1,), ElementType.UINT8, buffer),
            TensorSpec("wide", (4,), ElementType.FLOAT64, buffer),
            TensorSpec("small", (2,), ElementType.FLOAT16, buffer),
            TensorSpec("frozen", (1 << 40,), ElementType.OTHER, TensorKind.FROZEN, sha256=bytes(32)),
        ]
    )


@dataclass
class Transfer:
    """The model's values, and the payload of them in one wire type."""

    payload: PayloadFormat
    parameters: NDArray[np.float32]
    rest: bytes
    chunk_bytes: int = 600
    chunks: list[bytes] = field(init=False)
    crc32c: int = field(init=False)

    def __post_init__(self) -> None:
        splitter = Splitter(self.payload, self.parameters, self.rest, self.chunk_bytes)
        self.chunks = list(map(bytes, splitter))
        self.crc32c = splitter.crc32c

    @property
    def bytes(self) -> bytes:
        return b"".join(self.chunks)

    def decoder(self) -> tuple[DecodingAssembler, NDArray[np.float32], bytearray]:
        parameters = np.zeros(self.payload.layout.parameter_count, np.float32)
        rest = bytearray(self.payload.rest_bytes)
        return DecodingAssembler(self.payload, parameters, memoryview(rest)), parameters, rest

    def assembler(self, kind: str) -> Assembler:
        """A fresh assembler, "raw" or "decoding": both keep the same rules."""
        if kind == "raw":
            return RawAssembler(self.payload, memoryview(bytearray(self.payload.byte_count)))
        return self.decoder()[0]


def awkward_transfer(wire_type: WireType = WireType.FLOAT32) -> Transfer:
    layout = awkward_layout()
    random = np.random.default_rng(1)
    parameters = random.standard_normal(layout.parameter_count).astype(np.float32)
    pieces = [
        np.array([True, False, True]).tobytes(),
        random.standard_normal(10).astype("<f4").tobytes(),
        np.int64(17).tobytes(),
        np.array([0x3F80, 0x4000, 0xC000], "<u2").tobytes(),
        b"\xff",
        random.standard_normal(4).tobytes(),
        np.array([1, 2], "<f2").tobytes(),
    ]
    return Transfer(PayloadFormat(layout, wire_type), parameters, b"".join(pieces))


def deliver(assembler: Assembler, transfer: Transfer, data: bytes | None = None) -> None:
    """Add all of `data` (by default the payload as it was sent) in the transfer's chunks, then its footer."""
    view = memoryview(transfer.bytes if data is None else data)
    for chunk in transfer.chunks:
        assembler.add(view[: len(chunk)])
        view = view[len(chunk) :]
    assembler.finish(transfer.crc32c)
