"""Which BUFFERs a payload has (transfer.proto, BufferSelection).

A BUFFER travels whole or not at all, so that no tensor is ever a mixture of two workers' values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gem_core.errors import SelectionError

__all__ = ["MAX_RUN_NUMBERS", "Selection"]

# Three bytes each at most: a header with a selection stays far below the limit of a message's fields.
MAX_RUN_NUMBERS = 512


@dataclass(frozen=True, slots=True)
class Selection:
    """Some of a layout's BUFFERs.

    Attributes:
        runs: alternately the number of BUFFERs left out and the number of BUFFERs selected, in layout order. What is
            behind the last run is left out.

    Raises:
        SelectionError: the numbers are not legal.
    """

    runs: tuple[int, ...]

    def __post_init__(self) -> None:
        runs = self.runs
        if len(runs) > MAX_RUN_NUMBERS or len(runs) % 2:
            raise SelectionError(
                f"a selection of BUFFERs has {len(runs)} numbers: send an even number of them, {MAX_RUN_NUMBERS} at "
                "most, or leave the selection out and send all BUFFERs"
            )
        if any(number < (position > 0) for position, number in enumerate(runs)):
            raise SelectionError("a selection of BUFFERs has an empty run: join the runs on both sides of it")

    @classmethod
    def of(cls, indices: Iterable[int]) -> Selection | None:
        """Select the BUFFERs with these indices, ascending. Returns None if that takes too many runs: send all."""
        runs: list[int] = []
        end = 0
        for index in indices:
            if index == end and runs:
                runs[-1] += 1
            else:
                runs += (index - end, 1)
            end = index + 1
        return cls(tuple(runs)) if len(runs) <= MAX_RUN_NUMBERS else None

    @property
    def stop(self) -> int:
        """One more than the largest index; 0 if nothing is selected."""
        return sum(self.runs)

    def indices(self) -> Sequence[int]:
        """Return the indices of the selected BUFFERs, ascending. Check `stop` first: the numbers may be huge."""
        found: list[int] = []
        at = 0
        for left_out, selected in zip(self.runs[::2], self.runs[1::2], strict=True):
            at += left_out
            found += range(at, at + selected)
            at += selected
        return found
