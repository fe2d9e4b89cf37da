"""Wire types with torch operations, on whatever device the tensors are: the twin of `gem_core.wire_types`.

The rules are those of transfer.proto (enum WireType); a test holds both implementations against each other bit by bit.
Only values that are finite may be encoded: `transfer` looks before it sends.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gem_core.wire_types import BLOCK_BYTES, BLOCK_ELEMENTS, LARGEST_FLOAT16, WireType

# On the CPU, blocks of INT8_BLOCK are handled so many at once: their temporaries (1 MiB) stay in a core's cache.
_ROWS_AT_ONCE = 1024
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def encode(wire_type: WireType, values: Tensor, out: Tensor) -> None:
    """`out` <- the bytes of `values`.

    `values`: float32, one dimension, finite. `out`: uint8 of `encoded_bytes(wire_type, len(values))`, same device.
    """
    match wire_type:
        case WireType.FLOAT32:
            out.view(torch.float32).copy_(values)
        case WireType.FLOAT16:
            out.view(torch.float16).copy_(values.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16))
        case WireType.BFLOAT16:
            out.view(torch.bfloat16).copy_(values)
        case WireType.INT8_BLOCK:
            encoder = _Int8Blocks()
            for numbers, payload in _blocks(values, out):
                encoder.encode(numbers, payload)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


def decode(wire_type: WireType, payload: Tensor, out: Tensor) -> None:
    """`out` <- the values in `payload`; shapes and types as in `encode`."""
    match wire_type:
        case WireType.FLOAT32:
            out.copy_(payload.view(torch.float32))
        case WireType.FLOAT16:
            out.copy_(payload.view(torch.float16))
        case WireType.BFLOAT16:
            out.copy_(payload.view(torch.bfloat16))
        case WireType.INT8_BLOCK:
            decoder = _Int8Blocks()
            for numbers, encoded in _blocks(out, payload):
                decoder.decode(encoded, numbers)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


def _blocks(values: Tensor, payload: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Matching views of whole blocks, and of the shorter last one where there is one: a row is a block."""
    count = len(values) // BLOCK_ELEMENTS
    split = count * BLOCK_ELEMENTS
    rows, encoded = values[:split].view(count, BLOCK_ELEMENTS), payload[: count * BLOCK_BYTES].view(count, BLOCK_BYTES)
    step = _ROWS_AT_ONCE if values.device.type == "cpu" else max(count, 1)
    for start in range(0, count, step):
        yield rows[start : start + step], encoded[start : start + step]
    if split < len(values):
        yield values[split:].view(1, -1), payload[count * BLOCK_BYTES :].view(1, -1)


class _Int8Blocks:
    """Encodes and decodes rows of blocks. Its temporaries are made once, for the largest piece, which comes first."""

    def __init__(self) -> None:
        self._quotients: Tensor | None = None
        self._elements: Tensor | None = None

    def encode(self, blocks: Tensor, payload: Tensor) -> None:
        """`payload`: rows of 4 bytes more than the rows of `blocks` have elements."""
        if self._quotients is None or len(self._quotients) < len(blocks) or blocks.shape[1] != self._quotients.shape[1]:
            self._quotients = torch.empty_like(blocks)
        # abs: the larger of 0 and -0 may be -0, and a scale is never negative.
        scales = torch.maximum(blocks.amax(dim=1), -blocks.amin(dim=1)).abs_() / 127
        payload[:, :4].copy_(scales.view(torch.uint8).view(-1, 4))
        quotients = self._quotients[: len(blocks)]
        # Asking costs nothing on the CPU; a device would have to be waited for.
        if scales.device.type == "cpu" and scales.min() >= _SMALLEST_NORMAL:
            torch.div(blocks, scales[:, None], out=quotients).round_()
        else:
            # A scale of 0 (zeros, or the smallest denormals) would divide by 0; every q of such a block is 0.
            divisors = torch.where(scales == 0, torch.inf, scales)
            # Denormal scales are so coarse that a quotient can exceed 127.
            torch.div(blocks, divisors[:, None], out=quotients).round_().clamp_(-127, 127)
        payload[:, 4:].view(torch.int8).copy_(quotients)  # round_ was half to even

    def decode(self, payload: Tensor, blocks: Tensor) -> None:
        """Rows as in `encode`."""
        scales = payload[:, :4].clone(memory_format=torch.contiguous_format).view(torch.float32)
        if self._elements is None or len(self._elements) < len(blocks) or blocks.shape[1] != self._elements.shape[1]:
            self._elements = torch.empty_like(blocks, dtype=torch.int8)
        # Three passes over contiguous rows take half the time of one product of types and strides that differ.
        elements = self._elements[: len(blocks)].copy_(payload[:, 4:].view(torch.int8))
        blocks.copy_(elements).mul_(scales)
