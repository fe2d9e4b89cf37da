"""Wire types with torch operations, on whatever device the tensors are: the twin of `gem_core.wire_types`.

The rules are those of transfer.proto (enum WireType); a test holds both implementations against each other bit by bit.
Only values that are finite may be encoded: `transfer` looks before it sends.
"""

import torch
from torch import Tensor

from gem_core.wire_types import BLOCK_BYTES, BLOCK_ELEMENTS, LARGEST_FLOAT16, WireType


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
            for numbers, payload in _blocks(values, out):
                _encode_blocks(numbers, payload)
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
            for numbers, encoded in _blocks(out, payload):
                scales = encoded[:, :4].clone(memory_format=torch.contiguous_format).view(torch.float32)
                torch.mul(encoded[:, 4:].view(torch.int8), scales, out=numbers)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


def _blocks(values: Tensor, payload: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Matching views of whole blocks, and of the shorter last one where there is one: a row is a block."""
    count = len(values) // BLOCK_ELEMENTS
    split = count * BLOCK_ELEMENTS
    parts = []
    if count:
        parts.append((values[:split].view(count, -1), payload[: count * BLOCK_BYTES].view(count, -1)))
    if split < len(values):
        parts.append((values[split:].view(1, -1), payload[count * BLOCK_BYTES :].view(1, -1)))
    return parts


def _encode_blocks(blocks: Tensor, payload: Tensor) -> None:
    # abs: the larger of 0 and -0 may be -0, and a scale is never negative.
    scales = torch.maximum(blocks.amax(dim=1), -blocks.amin(dim=1)).abs_() / 127
    payload[:, :4].copy_(scales.view(torch.uint8).view(-1, 4))
    # A scale of 0 (zeros, or the smallest denormals) would divide by 0; every q of such a block is 0.
    divisors = torch.where(scales == 0, torch.inf, scales)
    # round is half to even; denormal scales are so coarse that a quotient can exceed 127.
    payload[:, 4:].view(torch.int8).copy_((blocks / divisors[:, None]).round_().clamp_(-127, 127))
