"""Offsets in a payload: PARAMETERs in the wire type, then BUFFERs as they are.

A border is an offset between two elements (or blocks), where encoding and decoding can begin. Chunks may be cut
anywhere (transfer.proto), but the splitters of this package cut at borders.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from gem_core.errors import ChunkError, SelectionError
from gem_core.layout import ElementType, Layout, TensorSpec
from gem_core.selection import Selection
from gem_core.wire_types import WireType, encoded_bytes

__all__ = ["MAX_CHUNK_BYTES", "PayloadFormat", "PayloadRegion", "selected_format"]

# The limit of transfer.proto, which keeps messages below gRPC's limit of 4 MiB.
MAX_CHUNK_BYTES = 2 * 1024 * 1024


class PayloadRegion(NamedTuple):
    """Bytes [start, stop) with a border every `unit` bytes. `element_type` is None for PARAMETERs."""

    start: int
    stop: int
    unit: int
    element_type: ElementType | None


@functools.lru_cache(maxsize=32)
def selected_format(layout: Layout, wire_type: WireType, selection: Selection) -> PayloadFormat:
    """Return the format of payloads with these BUFFERs. It is cached, as long as few selections are in use.

    Raises as `PayloadFormat`.
    """
    return PayloadFormat(layout, wire_type, selection)


@dataclass(frozen=True, slots=True, init=False)
class PayloadFormat:
    """A payload's format.

    Attributes:
        selection: the BUFFERs that the payload has; None: all.
        buffers: these BUFFERs, in layout order.
        rest_bytes: bytes after the PARAMETERs.
        regions: the payload's regions. Neighbours of one type are merged.

    Raises:
        WireTypeError: `wire_type` has no encoding.
        SelectionError: the layout has fewer BUFFERs.
    """

    layout: Layout
    wire_type: WireType
    selection: Selection | None
    buffers: tuple[TensorSpec, ...]
    byte_count: int
    parameter_bytes: int
    rest_bytes: int
    regions: tuple[PayloadRegion, ...]
    _region_starts: tuple[int, ...]
    _largest_unit: int
    _unit_bytes: int
    _unit_elements: int
    _chunks: dict[int, tuple[tuple[int, int], ...]] = field(compare=False, repr=False)  # by size

    def __init__(self, layout: Layout, wire_type: WireType, selection: Selection | None = None) -> None:
        parameter_bytes = encoded_bytes(wire_type, layout.parameter_count)
        buffers, rest_bytes = layout.buffers, layout.buffer_bytes
        if selection is not None:
            if selection.stop > len(buffers):
                raise SelectionError(
                    f"a selection reaches to BUFFER {selection.stop}; this layout has {len(buffers)}: count only these"
                )
            buffers = tuple(buffers[index] for index in selection.indices())
            rest_bytes = sum(tensor.byte_count for tensor in buffers)
        regions = [PayloadRegion(0, parameter_bytes, wire_type.unit_bytes, None)] if parameter_bytes else []
        offset = parameter_bytes
        for tensor in buffers:
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
            "selection": selection,
            "buffers": buffers,
            "byte_count": parameter_bytes + rest_bytes,
            "parameter_bytes": parameter_bytes,
            "rest_bytes": rest_bytes,
            "regions": tuple(regions),
            "_region_starts": tuple(region.start for region in regions),
            "_largest_unit": max((region.unit for region in regions), default=1),
            "_unit_bytes": wire_type.unit_bytes,
            "_unit_elements": wire_type.unit_elements,
            "_chunks": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def is_border(self, offset: int) -> bool:
        """Whether `offset` lies between two elements or blocks."""
        if offset == self.byte_count:
            return True
        if not 0 <= offset < self.byte_count:
            return False
        region = self._region_at(offset)
        return (offset - region.start) % region.unit == 0

    def border_at_or_before(self, offset: int) -> int:
        """Return the largest border <= `offset`, which is in [0, byte_count]."""
        if offset == self.byte_count:
            return offset
        region = self._region_at(offset)
        return offset - (offset - region.start) % region.unit

    def check_chunk(self, start: int, end: int) -> None:
        """Raise ChunkError unless one chunk can have the payload's bytes [start, end)."""
        if not 1 <= end - start <= MAX_CHUNK_BYTES:
            raise ChunkError(f"a chunk of {end - start} bytes; chunks must have 1 to {MAX_CHUNK_BYTES} bytes")
        if end > self.byte_count:
            raise ChunkError(f"a chunk that ends at {end}; it must end at or before {self.byte_count}")

    def cut(self, chunk_bytes: int, start: int = 0) -> tuple[tuple[int, int], ...]:
        """Return the chunks (offset, end) from `start` on. Those of a whole payload are computed once.

        Raises ChunkError if `start` is no border or `chunk_bytes` is illegal.
        """
        if not start and (known := self._chunks.get(chunk_bytes)) is not None:
            return known
        if start and not self.is_border(start):
            raise ChunkError(f"offset {start} is not a border of this payload: start where a chunk could start")
        if not self._largest_unit <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise ChunkError(
                f"chunks of {chunk_bytes} bytes: this payload takes {self._largest_unit} to {MAX_CHUNK_BYTES}"
            )
        chunks, offset = [], start
        while offset < self.byte_count:
            end = self.border_at_or_before(min(offset + chunk_bytes, self.byte_count))
            chunks.append((offset, end))
            offset = end
        table = tuple(chunks)
        if not start:
            self._chunks[chunk_bytes] = table
        return table

    def parameter_elements(self, start: int, stop: int) -> slice:
        """Return the range of PARAMETER elements between two borders."""
        unit, elements = self._unit_bytes, self._unit_elements
        last = self.layout.parameter_count
        first = last if start == self.parameter_bytes else start // unit * elements
        return slice(first, last if stop == self.parameter_bytes else stop // unit * elements)

    def regions_between(self, start: int, stop: int) -> Iterator[PayloadRegion]:
        """Yield the regions clipped to two borders."""
        index = max(bisect_right(self._region_starts, start) - 1, 0)
        while index < len(self.regions) and (region := self.regions[index]).start < stop:
            yield region._replace(start=max(region.start, start), stop=min(region.stop, stop))
            index += 1

    def locate_rest(self, offset: int) -> tuple[TensorSpec, int]:
        """Return the BUFFER at `offset`, and the index of the element there. Raises IndexError."""
        start = self.parameter_bytes
        for tensor in self.buffers:
            if start <= offset < start + tensor.byte_count:
                return tensor, (offset - start) // tensor.element_type.byte_size
            start += tensor.byte_count
        raise IndexError(f"offset {offset} is in no buffer")

    def rest_ranges(self) -> list[tuple[int, int]]:
        """Return where the selected BUFFERs lie among the bytes of all BUFFERs: (start, stop) of each run."""
        if self.selection is None:
            return [(0, self.rest_bytes)]
        starts = list(accumulate((tensor.byte_count for tensor in self.layout.buffers), initial=0))
        ranges, at = [], 0
        for left_out, selected in zip(self.selection.runs[::2], self.selection.runs[1::2], strict=True):
            at += left_out
            ranges.append((starts[at], starts[at + selected]))
            at += selected
        return ranges

    def _region_at(self, offset: int) -> PayloadRegion:
        return self.regions[bisect_right(self._region_starts, offset) - 1]
