"""Where everything lies in a payload: PARAMETERs in the wire type, then BUFFERs (then CONSTANTs) in their own types.

Borders are the offsets at which a chunk may be cut (transfer.proto, message Chunk). This file knows sizes and offsets
only; bytes are read and written in wire_types.py and chunking/.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gem_core.errors import ChunkError
from gem_core.layout import ElementType, Layout, TensorSpec
from gem_core.wire_types import WireType, encoded_bytes

__all__ = ["MAX_CHUNK_BYTES", "PayloadFormat", "Region"]

# transfer.proto: 2 MiB, so that a message with a chunk stays far below gRPC's default limit of 4 MiB.
MAX_CHUNK_BYTES = 2 * 1024 * 1024


class Region(NamedTuple):
    """Consecutive bytes of the payload in one encoding: offsets [start, stop), cut every `unit` bytes from `start`.

    `element_type` is None for the PARAMETERs, which are in the payload's wire type.
    """

    start: int
    stop: int
    unit: int
    element_type: ElementType | None


@dataclass(frozen=True, slots=True, init=False)
class PayloadFormat:
    """The format of one payload: a layout in a wire type, with or without the CONSTANTs.

    Attributes:
        layout, wire_type, with_constants: what it is the format of.
        byte_count: bytes of the whole payload.
        parameter_bytes: bytes of the PARAMETERs, which come first.
        rest_bytes: bytes of the BUFFERs, and of the CONSTANTs where they travel.
        regions: what lies where; neighbours of one element type are joined, empty ones left out.

    Raises:
        WireTypeError: `wire_type` has no encoding (SHARED_MEMORY).
    """

    layout: Layout
    wire_type: WireType
    with_constants: bool
    byte_count: int
    parameter_bytes: int
    rest_bytes: int
    regions: tuple[Region, ...]
    _region_starts: tuple[int, ...]
    _largest_unit: int

    def __init__(self, layout: Layout, wire_type: WireType, with_constants: bool = False) -> None:
        parameter_bytes = encoded_bytes(wire_type, layout.parameter_count)
        rest_bytes = layout.buffer_bytes + (layout.constant_bytes if with_constants else 0)
        regions = [Region(0, parameter_bytes, wire_type.unit_bytes, None)] if parameter_bytes else []
        offset = parameter_bytes
        for tensor in layout.buffers + (layout.constants if with_constants else ()):
            stop = offset + tensor.byte_count
            if stop == offset:
                continue
            if regions and regions[-1].element_type is tensor.element_type:
                regions[-1] = regions[-1]._replace(stop=stop)
            else:
                regions.append(Region(offset, stop, tensor.element_type.byte_size, tensor.element_type))
            offset = stop
        values = {
            "layout": layout,
            "wire_type": wire_type,
            "with_constants": with_constants,
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
        """Whether a chunk may start or end at `offset`: between two elements (blocks), or at either end."""
        if offset == self.byte_count:
            return True
        if not 0 <= offset < self.byte_count:
            return False
        region = self._region_at(offset)
        return (offset - region.start) % region.unit == 0

    def border_at_or_before(self, offset: int) -> int:
        """The largest border that is not beyond `offset`, which must be in [0, byte_count]."""
        if offset == self.byte_count:
            return offset
        region = self._region_at(offset)
        return offset - (offset - region.start) % region.unit

    def cut(self, chunk_bytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """The chunks (offset, end) of the payload from `start` on, each of at most `chunk_bytes` bytes.

        The next offset is the end before it; the last end is byte_count. A chunk may hold the end of one region and
        the beginning of the next.

        Raises:
            ChunkError: `start` is not a border, or `chunk_bytes` is more than 2 MiB or less than one unit of this
                payload (an element, or a block of INT8_BLOCK).
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
        """The PARAMETER elements whose bytes are [start, stop), two borders within the PARAMETERs."""
        return slice(self._parameter_index(start), self._parameter_index(stop))

    def _parameter_index(self, offset: int) -> int:
        if offset == self.parameter_bytes:
            return self.layout.parameter_count
        return offset // self.wire_type.unit_bytes * self.wire_type.unit_elements

    def regions_between(self, start: int, stop: int) -> Iterator[Region]:
        """The parts of regions that lie in [start, stop), two borders."""
        index = max(bisect_right(self._region_starts, start) - 1, 0)
        while index < len(self.regions) and (region := self.regions[index]).start < stop:
            yield region._replace(start=max(region.start, start), stop=min(region.stop, stop))
            index += 1

    def locate_rest(self, offset: int) -> tuple[TensorSpec, int]:
        """The BUFFER or CONSTANT that holds the byte at payload offset `offset`, and the flat element index within it.

        For error messages: it walks over the tensors.

        Raises:
            IndexError: no such tensor holds the byte.
        """
        start = self.parameter_bytes
        for tensor in self.layout.buffers + (self.layout.constants if self.with_constants else ()):
            if start <= offset < start + tensor.byte_count:
                return tensor, (offset - start) // tensor.element_type.byte_size
            start += tensor.byte_count
        raise IndexError(f"offset {offset} is in no buffer or constant")

    def _region_at(self, offset: int) -> Region:
        return self.regions[bisect_right(self._region_starts, offset) - 1]
