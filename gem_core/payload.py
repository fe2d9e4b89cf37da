"""Offsets in a payload: PARAMETERs in the wire type, then BUFFERs as they are.

Border: offset at which a chunk may be cut (transfer.proto).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gem_core.errors import ChunkError
from gem_core.layout import ElementType, Layout, TensorSpec
from gem_core.wire_types import WireType, encoded_bytes

__all__ = ["MAX_CHUNK_BYTES", "PayloadFormat", "PayloadRegion"]

# transfer.proto; gRPC's limit is 4 MiB.
MAX_CHUNK_BYTES = 2 * 1024 * 1024


class PayloadRegion(NamedTuple):
    """Bytes [start, stop) with borders every `unit` bytes; `element_type` None: PARAMETERs."""

    start: int
    stop: int
    unit: int
    element_type: ElementType | None


@dataclass(frozen=True, slots=True, init=False)
class PayloadFormat:
    """A payload's format.

    Attributes:
        rest_bytes: bytes after the PARAMETERs.
        regions: neighbours of one type are merged.

    Raises:
        WireTypeError: `wire_type` has no encoding.
    """

    layout: Layout
    wire_type: WireType
    byte_count: int
    parameter_bytes: int
    rest_bytes: int
    regions: tuple[PayloadRegion, ...]
    _region_starts: tuple[int, ...]
    _largest_unit: int

    def __init__(self, layout: Layout, wire_type: WireType) -> None:
        parameter_bytes = encoded_bytes(wire_type, layout.parameter_count)
        rest_bytes = layout.buffer_bytes
        regions = [PayloadRegion(0, parameter_bytes, wire_type.unit_bytes, None)] if parameter_bytes else []
        offset = parameter_bytes
        for tensor in layout.buffers:
            stop = offset + tensor.byte_count
            if stop == offset:
                continue
            if regions and regions[-1].element_type is tensor.element_type:
                regions[-1] = regions[-1]._replace(stop=stop)
            else:
                regions.append(PayloadRegion(offset, stop, tensor.element_type.byte_size, tensor.element_type))
            offset = stop
        values = {
            "layout": layout,
            "wire_type": wire_type,
            "byte_count": parameter_bytes + rest_bytes,
            "parameter_bytes": parameter_bytes,
            "rest_bytes": rest_bytes,
            "regions": tuple(regions),
            "_region_starts": tuple(region.start for region in regions),
            "_largest_unit": max((region.unit for region in regions), default=1),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def is_border(self, offset: int) -> bool:
        """Whether a chunk may be cut at `offset`."""
        if offset == self.byte_count:
            return True
        if not 0 <= offset < self.byte_count:
            return False
        region = self._region_at(offset)
        return (offset - region.start) % region.unit == 0

    def border_at_or_before(self, offset: int) -> int:
        """Largest border <= `offset`, in [0, byte_count]."""
        if offset == self.byte_count:
            return offset
        region = self._region_at(offset)
        return offset - (offset - region.start) % region.unit

    def cut(self, chunk_bytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield chunks (offset, end) from `start` on.

        Raises ChunkError if `start` is no border or `chunk_bytes` is illegal.
        """
        if start and not self.is_border(start):
            raise ChunkError(f"offset {start} is not a border of this payload: start where a chunk could start")
        if not self._largest_unit <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise ChunkError(
                f"chunks of {chunk_bytes} bytes: this payload takes {self._largest_unit} to {MAX_CHUNK_BYTES}"
            )
        return self._cut(chunk_bytes, start)

    def _cut(self, chunk_bytes: int, offset: int) -> Iterator[tuple[int, int]]:
        while offset < self.byte_count:
            end = self.border_at_or_before(min(offset + chunk_bytes, self.byte_count))
            yield offset, end
            offset = end

    def parameter_elements(self, start: int, stop: int) -> slice:
        """PARAMETER elements between two borders."""
        return slice(self._parameter_index(start), self._parameter_index(stop))

    def _parameter_index(self, offset: int) -> int:
        if offset == self.parameter_bytes:
            return self.layout.parameter_count
        return offset // self.wire_type.unit_bytes * self.wire_type.unit_elements

    def regions_between(self, start: int, stop: int) -> Iterator[PayloadRegion]:
        """Yield the regions clipped to two borders."""
        index = max(bisect_right(self._region_starts, start) - 1, 0)
        while index < len(self.regions) and (region := self.regions[index]).start < stop:
            yield region._replace(start=max(region.start, start), stop=min(region.stop, stop))
            index += 1

    def locate_rest(self, offset: int) -> tuple[TensorSpec, int]:
        """BUFFER at `offset` and the element within it. Raises IndexError."""
        start = self.parameter_bytes
        for tensor in self.layout.buffers:
            if start <= offset < start + tensor.byte_count:
                return tensor, (offset - start) // tensor.element_type.byte_size
            start += tensor.byte_count
        raise IndexError(f"offset {offset} is in no buffer")

    def _region_at(self, offset: int) -> PayloadRegion:
        return self.regions[bisect_right(self._region_starts, offset) - 1]
