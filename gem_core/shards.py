"""Cuts a model's flat PARAMETERs into ranges for several servers (docs/design.md, section 9).

Shard i of N holds [cut_i, cut_(i+1)), cut_i = n * i // N // 256 * 256, so that no block (INT4_BLOCK, SPARSE_BLOCK) is
cut. The last shard also holds the BUFFERs, which follow the PARAMETERs in a payload; FROZEN tensors count for each
shard's digest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Self

from gem_core.errors import LayoutError
from gem_core.layout import Layout, Part, TensorRole, TensorSpec

__all__ = ["MAX_SHARDS", "Shard", "combined"]

ALIGNMENT = 256
MAX_SHARDS = 256


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` of `count`; 0 is the primary."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "I/N". Raises ValueError."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= MAX_SHARDS):
            raise ValueError(f"{text!r} is not I/N: write 0/4, 1/4, 2/4 and 3/4 for four servers, at most {MAX_SHARDS}")
        return cls(int(index), int(count))

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """The layout's shard."""
        return cls(layout.part.index, layout.part.count) if layout.part is not None else cls()

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def title(self) -> str:
        """Describe the shard for messages."""
        return "the whole model" if self.is_whole else f"shard {self}"

    @property
    def is_whole(self) -> bool:
        """Whether this is the only shard."""
        return self.count == 1

    @property
    def is_secondary(self) -> bool:
        """Whether another shard orders this one's commits."""
        return self.index > 0

    @property
    def is_last(self) -> bool:
        """Whether it holds the BUFFERs."""
        return self.index == self.count - 1

    def range_of(self, parameter_count: int) -> slice:
        """This shard's elements of the flat vector."""
        return slice(*(self._cut(index, parameter_count) for index in (self.index, self.index + 1)))

    def _cut(self, index: int, parameter_count: int) -> int:
        if index == self.count:
            return parameter_count
        return parameter_count * index // self.count // ALIGNMENT * ALIGNMENT

    def layout_of(self, whole: Layout) -> Layout:
        """The layout of this shard's payloads; the whole one if there is one shard.

        A PARAMETER that is cut gets the shape (k, 1) if it is a matrix or embedding, else (k,). Raises LayoutError if a
        shard would be empty.
        """
        if self.is_whole:
            return whole
        if whole.parameter_count < ALIGNMENT * self.count:
            raise LayoutError(
                f"{whole.parameter_count} parameters are too few for {self.count} shards of {ALIGNMENT} or more: use "
                "fewer shards"
            )
        held = self.range_of(whole.parameter_count)
        tensors = []
        start = 0
        for tensor in whole.parameters:
            stop = start + tensor.elements
            inside = min(stop, held.stop) - max(start, held.start)
            if inside > 0:
                tensors.append(tensor if inside == tensor.elements else _cut_to(tensor, inside))
            start = stop
        tensors += whole.buffers if self.is_last else ()
        return Layout(tensors, Part(self.index, self.count, whole))


def combined(pieces: Sequence[Sequence[float]], elements: Sequence[int]) -> list[float]:
    """Combine the values of Statistics: three shares, weighted by each piece's `elements`, then norms.

    Shares are exact if no element of the delta is 0.
    """
    columns = list(zip(*pieces, strict=True))
    shares = [sum(map(mul, column, elements)) / sum(elements) for column in columns[:3]]
    return shares + [math.hypot(*column) for column in columns[3:]]


def _cut_to(tensor: TensorSpec, elements: int) -> TensorSpec:
    is_vector = tensor.role is TensorRole.VECTOR
    return replace(tensor, shape=(elements,) if is_vector else (elements, 1))
