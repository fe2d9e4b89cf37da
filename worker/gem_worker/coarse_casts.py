"""INT4_BLOCK and SPARSE_BLOCK in torch, as in gem_core.wire_blocks; `data`: int8. Never waits for the device."""

import torch
from torch import Tensor

from gem_core.wire_blocks import SPARSE_GROUP
from gem_core.wire_types import BLOCKS, WireType


def encode_rows(wire_type: WireType, rows: Tensor, scales: Tensor, data: Tensor) -> None:
    """Encode finite `rows` into `scales` and `data`."""
    magnitudes = rows.abs()
    # CUDA multiplies by the reciprocal of a number.
    levels = magnitudes.new_full((), BLOCKS[wire_type].levels)
    scales.copy_(magnitudes.amax(dim=1, keepdim=True).div_(levels))
    if wire_type is WireType.INT4_BLOCK:
        quantised = rows.new_zeros(len(rows), 2 * data.shape[1], dtype=torch.int8)
        quantised[:, : rows.shape[1]] = _quantise(rows, scales, 7)
        pairs = quantised.view(torch.int16)
        data.copy_((pairs >> 4).bitwise_and_(240).bitwise_or_(pairs & 15))
        return
    count = data.shape[1]
    if rows.shape[1] < count * SPARSE_GROUP:
        magnitudes = torch.nn.functional.pad(magnitudes, (0, count * SPARSE_GROUP - rows.shape[1]))
    # Integers compare magnitudes faster.
    indices = magnitudes.view(torch.int32).view(-1, count, SPARSE_GROUP).argmax(dim=2)
    quantised = _quantise(rows.gather(1, _positions(indices)), scales, 31).to(torch.int8)
    data.copy_((quantised << 2).bitwise_or_(indices))


def decode_rows(wire_type: WireType, scales: Tensor, data: Tensor, out: Tensor) -> None:
    """Decode into `out`: [rows, elements]."""
    if wire_type is WireType.INT4_BLOCK:
        quantised = torch.stack([(data << 4) >> 4, data >> 4], dim=2).view(len(data), -1)
        out.copy_(quantised[:, : out.shape[1]]).mul_(scales)
        return
    places = _positions((data & 3).to(torch.int64))
    out.zero_().scatter_(1, places, (data >> 2).to(torch.float32).mul_(scales))


def _positions(indices: Tensor) -> Tensor:
    return indices + torch.arange(0, SPARSE_GROUP * indices.shape[1], SPARSE_GROUP, device=indices.device)


def _quantise(rows: Tensor, scales: Tensor, levels: int) -> Tensor:
    """Return the values as multiples of their scales, rounded to whole numbers (float32)."""
    divisors = torch.where(scales == 0, torch.inf, scales)
    return torch.div(rows, divisors).round_().clamp_(-levels, levels)
