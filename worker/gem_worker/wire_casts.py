"""Wire types with torch operations, on whatever device the tensors are: the twin of `gem_core.wire_types`.

The rules are those of transfer.proto (enum WireType); a test holds both implementations against each other bit by bit.

There are two ways to encode. `encode` does it with one operation at a time over the whole of it and never waits for
the device. On the CPU that would go through memory five times, so `HostEncoder` scales, looks for values that no
server takes and encodes piece by piece, while a piece is in a core's cache. `decode` is one way through memory anyhow;
`HostDecoder` is for places on the CPU that are used again.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gem_core.wire_types import BLOCK_BYTES, BLOCK_ELEMENTS, LARGEST_FLOAT16, LARGEST_VALUE, WireType

# The server refuses values beyond 1e30 as they arrive: rounding to a narrow wire type must not carry one there.
LARGEST_SENT = LARGEST_VALUE / 2
# Elements that a core handles at once: a piece and its magnitudes, 1 MiB together, stay in its cache, and calling the
# operations costs little beside them.
_PIECE = 128 * 1024
# Elements up to which PyTorch copies in one thread.
_SMALL = 32 * 1024
_TYPES = {WireType.FLOAT32: torch.float32, WireType.FLOAT16: torch.float16, WireType.BFLOAT16: torch.bfloat16}
# A block whose largest magnitude is at least this has a scale that is no denormal.
_LARGEST_OF_NORMAL = 127 * torch.finfo(torch.float32).tiny
# Up to this sum of squares every value lies well within what `HostEncoder` need not look for in another way.
_HARMLESS_SQUARES = {WireType.FLOAT32: 1e36, WireType.FLOAT16: 1e9, WireType.BFLOAT16: 1e36}


def encode(wire_type: WireType, values: Tensor, out: Tensor) -> None:
    """`out` <- the bytes of `values`.

    `values`: float32, one dimension, finite. `out`: uint8 of `encoded_bytes(wire_type, len(values))`, same device.
    """
    match wire_type:
        case WireType.FLOAT32 | WireType.BFLOAT16:
            out.view(_TYPES[wire_type]).copy_(values)
        case WireType.FLOAT16:
            out.view(torch.float16).copy_(values.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16))
        case WireType.INT8_BLOCK:
            for rows, scales, elements in _blocks(values, out, len(values)):
                magnitudes = rows.abs()
                scales.copy_(magnitudes.amax(dim=1, keepdim=True).div_(127))
                _quantise_any(rows, scales, magnitudes)
                elements.copy_(magnitudes)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


def decode(wire_type: WireType, payload: Tensor, out: Tensor) -> None:
    """`out` <- the values in `payload`; shapes and types as in `encode`."""
    match wire_type:
        case WireType.FLOAT32 | WireType.FLOAT16 | WireType.BFLOAT16:
            out.copy_(payload.view(_TYPES[wire_type]))
        case WireType.INT8_BLOCK:
            for rows, scales, elements in _blocks(out, payload, _piece() if out.device.type == "cpu" else len(out)):
                # Two operations take half the time of one product of types that differ.
                rows.copy_(elements).mul_(scales)
        case _:
            raise ValueError(f"{wire_type.name} has no encoding")


class HostDecoder:
    """Decodes one place to another on the CPU, as often as something new is there.

    What it needs of both is made once: a small payload is copied in less time than PyTorch takes to begin.

    Args:
        payload, out: as in `decode`.
    """

    def __init__(self, wire_type: WireType, payload: Tensor, out: Tensor) -> None:
        self.decode: Callable[[], object] = partial(decode, wire_type, payload, out)
        if wire_type is WireType.FLOAT32 and len(out) <= _SMALL:
            self.decode = partial(np.copyto, out.numpy(), payload.numpy().view(np.float32))


class HostEncoder:
    """Makes payloads of gradients on the CPU. It keeps its temporaries, of a piece's size, for the next time.

    Not thread-safe.
    """

    def __init__(self, wire_type: WireType) -> None:
        self._wire_type = wire_type
        self._scaled = self._magnitudes = torch.empty(0)

    def encode(self, values: Tensor, factor: float, out: Tensor) -> bool:
        """`out` <- the bytes of `factor` * `values`, rounded to float32 first; they may be the same memory (FLOAT32).

        `values`: float32, one dimension. `out`: uint8 of `encoded_bytes(wire_type, len(values))`.

        Returns whether every product is finite and at most 5e29 in magnitude; if not, `out` must not be used.
        """
        piece = min(_piece(), len(values))
        if self._wire_type is not WireType.FLOAT32 and len(self._scaled) < piece:
            self._scaled = torch.empty(piece)
        if self._wire_type is not WireType.INT8_BLOCK:
            return self._encode_values(values, factor, out.view(_TYPES[self._wire_type]), piece)
        if len(self._magnitudes) < piece:
            self._magnitudes = torch.empty(piece)
        return self._encode_blocks(values, factor, out, piece)

    def _encode_values(self, values: Tensor, factor: float, out: Tensor, piece: int) -> bool:
        usable = True
        for source, target in zip(_cut(values, piece), _cut(out, piece), strict=True):
            scaled = target if target.dtype is torch.float32 else self._scaled[: len(source)]
            torch.mul(source, factor, out=scaled)
            # A sum of squares takes a fifth of the time of the extremes, and is NaN or infinite where a value is.
            if not torch.dot(scaled, scaled).item() <= _HARMLESS_SQUARES[self._wire_type]:
                lowest, highest = (extreme.item() for extreme in scaled.aminmax())
                usable = usable and lowest >= -LARGEST_SENT and highest <= LARGEST_SENT  # NaN fails each comparison
                if target.dtype is torch.float16:
                    scaled.clamp_(-LARGEST_FLOAT16, LARGEST_FLOAT16)
            if scaled is not target:
                target.copy_(scaled)
        return usable

    def _encode_blocks(self, values: Tensor, factor: float, out: Tensor, piece: int) -> bool:
        usable = True
        for rows, scales, elements in _blocks(values, out, piece):
            scaled = self._scaled[: rows.numel()].view_as(rows)
            magnitudes = self._magnitudes[: rows.numel()].view_as(rows)
            torch.abs(torch.mul(rows, factor, out=scaled), out=magnitudes)
            # The bits of magnitudes, as integers, are in the same order, NaN above all; and are compared twice as fast.
            torch.amax(magnitudes.view(torch.int32), dim=1, keepdim=True, out=scales.view(torch.int32))
            smallest, largest = (extreme.item() for extreme in scales.aminmax())
            usable = usable and largest <= LARGEST_SENT
            scales.div_(127)
            if smallest >= _LARGEST_OF_NORMAL:
                torch.div(scaled, scales, out=scaled).round_()
            else:
                _quantise_any(scaled, scales, scaled)
            elements.copy_(scaled)  # round_ was half to even
        return usable


def _quantise_any(rows: Tensor, scales: Tensor, out: Tensor) -> None:
    """`out` <- the elements of blocks whose scales may be anything, as float32."""
    # A scale of 0 (zeros, or the smallest denormals) would divide by 0; every q of such a block is 0.
    divisors = torch.where(scales == 0, torch.inf, scales)
    # Denormal scales are so coarse that a quotient can exceed 127.
    torch.div(rows, divisors, out=out).round_().clamp_(-127, 127)


def _piece() -> int:
    """Elements to handle at once: an operation shares them out among the threads, and each has a cache of its own."""
    return _PIECE * torch.get_num_threads()


def _cut(tensor: Tensor, length: int) -> tuple[Tensor, ...]:
    """Views of `length` rows each. Small models have one, and torch.split takes 5 us."""
    return (tensor,) if len(tensor) <= length else torch.split(tensor, length)


def _blocks(values: Tensor, payload: Tensor, piece: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of so many values at a time, and last the shorter block where there is one: a row is a block.

    Gives rows of `values`, and in `payload` their scales (one column) and their elements.
    """
    count = len(values) // BLOCK_ELEMENTS
    split, rows = count * BLOCK_ELEMENTS, max(1, piece // BLOCK_ELEMENTS)
    if count:
        encoded = payload[: count * BLOCK_BYTES]
        scales = encoded.view(torch.float32).view(count, -1)[:, :1]
        elements = encoded.view(torch.int8).view(count, -1)[:, 4:]
        whole = values[:split].view(count, -1)
        yield from zip(_cut(whole, rows), _cut(scales, rows), _cut(elements, rows), strict=True)
    if split < len(values):
        encoded = payload[count * BLOCK_BYTES :]
        scales, elements = encoded[:4].view(torch.float32).view(1, 1), encoded[4:].view(torch.int8).view(1, -1)
        yield values[split:].view(1, -1), scales, elements
