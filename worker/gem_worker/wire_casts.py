"""Wire type casts in torch; must match `gem_core.wire_types` bit by bit (transfer.proto, enum WireType).

`encode` and `decode` never wait for the device.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gem_core.thresholds import DEVICE_PIECE, NUMPY_DECODE_ELEMENTS, PIECE
from gem_core.wire_types import BLOCK_ELEMENTS, BLOCKS, LARGEST_VALUE, WireType
from gem_worker import coarse_casts

# Rounding to a wire type must not exceed LARGEST_VALUE.
LARGEST_SENT = LARGEST_VALUE / 2
_TYPES = {WireType.FLOAT32: torch.float32, WireType.BFLOAT16: torch.bfloat16}
# A smaller sum of squares needs no range check.
_HARMLESS_SQUARES = 1e36


def encode(wire_type: WireType, values: Tensor, out: Tensor) -> None:
    """Encode `values` (float32, 1-d, finite) into `out`: uint8 [encoded_bytes(wire_type, len(values))]."""
    match wire_type:
        case WireType.FLOAT32 | WireType.BFLOAT16:
            out.view(_TYPES[wire_type]).copy_(values)
        case _ if wire_type in BLOCKS:
            for rows, scales, data in _blocks(wire_type, values, out, _piece_of(values)):
                coarse_casts.encode_rows(wire_type, rows, scales, data)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


def decode(wire_type: WireType, payload: Tensor, out: Tensor) -> None:
    """Decode `payload` into `out`; shapes as in `encode`."""
    match wire_type:
        case WireType.FLOAT32 | WireType.BFLOAT16:
            out.copy_(payload.view(_TYPES[wire_type]))
        case _ if wire_type in BLOCKS:
            for rows, scales, data in _blocks(wire_type, out, payload, _piece_of(out)):
                coarse_casts.decode_rows(wire_type, scales, data, rows)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


def subtract(wire_type: WireType, payload: Tensor, values: Tensor) -> None:
    """Subtract the decoded `payload` from `values`; shapes as in `encode`."""
    piece = _piece_of(values)
    if wire_type in BLOCKS:
        for rows, scales, data in _blocks(wire_type, values, payload, piece):
            decoded = torch.empty_like(rows)
            coarse_casts.decode_rows(wire_type, scales, data, decoded)
            rows.sub_(decoded)
    else:
        for target, encoded in zip(_cut(values, piece), _cut(payload.view(_TYPES[wire_type]), piece), strict=True):
            target.sub_(encoded)


def is_harmless(values: Tensor, factor: float) -> bool:
    """Whether `factor` times each value (float32, CPU) is finite and at most 5e29 in magnitude."""
    if torch.dot(values, values).item() * factor * factor <= _HARMLESS_SQUARES:
        return True
    lowest, highest = (abs(factor * extreme.item()) for extreme in values.aminmax())
    return lowest <= LARGEST_SENT and highest <= LARGEST_SENT  # NaN fails each comparison


class HostDecoder:
    """Decodes one CPU buffer into another."""

    def __init__(self, wire_type: WireType, payload: Tensor, out: Tensor) -> None:
        self.decode: Callable[[], object] = partial(decode, wire_type, payload, out)
        if wire_type is WireType.FLOAT32 and len(out) <= NUMPY_DECODE_ELEMENTS:
            # Less overhead than PyTorch.
            self.decode = partial(np.copyto, out.numpy(), payload.numpy().view(np.float32))


class HostEncoder:
    """Encodes one CPU buffer. Not thread-safe.

    `values`: float32, 1-d. `payload`: as in `encode`; may share memory with `values` (FLOAT32).
    """

    def __init__(self, wire_type: WireType, values: Tensor, payload: Tensor) -> None:
        piece = min(_piece(), len(values))
        if wire_type in BLOCKS:
            self._encode = partial(_encode_blocks, wire_type, values, payload)
        else:
            self._encode = partial(_encode_values, _value_pieces(values, payload.view(_TYPES[wire_type]), piece))

    def encode(self, factor: float) -> bool:
        """Encode `factor` * `values`, rounded to float32, into `payload`.

        False: a product is not finite or exceeds 5e29 in magnitude; `payload` must not be used.
        """
        return self._encode(factor)


class _ValuePiece(NamedTuple):
    """`scaled` is `target` if float32."""

    source: Tensor
    scaled: Tensor
    target: Tensor


def _value_pieces(values: Tensor, out: Tensor, piece: int) -> tuple[_ValuePiece, ...]:
    memory = torch.empty(0 if out.dtype is torch.float32 else piece, dtype=torch.float32, device="cpu")
    return tuple(
        _ValuePiece(source, target if target.dtype is torch.float32 else memory[: len(source)], target)
        for source, target in zip(_cut(values, piece), _cut(out, piece), strict=True)
    )


def _encode_values(pieces: tuple[_ValuePiece, ...], factor: float) -> bool:
    usable = True
    for source, scaled, target in pieces:
        torch.mul(source, factor, out=scaled)
        # Faster than the extremes.
        if not torch.dot(scaled, scaled).item() <= _HARMLESS_SQUARES:
            lowest, highest = (extreme.item() for extreme in scaled.aminmax())
            usable = usable and lowest >= -LARGEST_SENT and highest <= LARGEST_SENT  # NaN fails each comparison
        if scaled is not target:
            target.copy_(scaled)
    return usable


def _encode_blocks(wire_type: WireType, values: Tensor, payload: Tensor, factor: float) -> bool:
    encode(wire_type, values if factor == 1 else values * factor, payload)
    return is_harmless(values, factor)


def _piece() -> int:
    return PIECE * torch.get_num_threads()


def _piece_of(values: Tensor) -> int:
    return _piece() if values.device.type == "cpu" else DEVICE_PIECE


def _cut(tensor: Tensor, length: int) -> tuple[Tensor, ...]:
    """Avoids a slow torch.split."""
    return (tensor,) if len(tensor) <= length else torch.split(tensor, length)


def _blocks(
    wire_type: WireType, values: Tensor, payload: Tensor, piece: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield rows of `values` (a block each), scales, elements."""
    count = len(values) // BLOCK_ELEMENTS
    split, rows = count * BLOCK_ELEMENTS, max(1, piece // BLOCK_ELEMENTS)
    border = BLOCKS[wire_type].bytes_of(split)
    if count:
        encoded = payload[:border]
        scales = encoded.view(torch.float32).view(count, -1)[:, :1]
        elements = encoded.view(torch.int8).view(count, -1)[:, 4:]
        whole = values[:split].view(count, -1)
        yield from zip(_cut(whole, rows), _cut(scales, rows), _cut(elements, rows), strict=True)
    if split < len(values):
        encoded = payload[border:]
        scales, elements = encoded[:4].view(torch.float32).view(1, 1), encoded[4:].view(torch.int8).view(1, -1)
        yield values[split:].view(1, -1), scales, elements
