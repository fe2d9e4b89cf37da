"""The values of a model's BUFFERs, and when each of them last changed.

`Buffers` is immutable: the central variable, the workers' snapshots and readers share one, and two versions share the
bytes of what did not change between them. So masks and tables, which never change, exist once, whatever the number of
workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gem_core import Layout
from gem_core.chunking.assemble import first_non_finite
from gem_core.payload import PayloadFormat
from gem_core.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """One version of all BUFFERs.

    Attributes:
        pieces: each BUFFER's bytes, in layout order.
        changed_at: the clock of the commit that last changed each of them.
    """

    pieces: tuple[bytes, ...] = ()
    changed_at: tuple[int, ...] = ()

    @classmethod
    def split(cls, layout: Layout, data: bytes, clock: int) -> "Buffers":
        """Cut the bytes of all BUFFERs into those of each one; `clock`: of their version."""
        pieces, start = [], 0
        for tensor in layout.buffers:
            pieces.append(data[start : start + tensor.byte_count])
            start += tensor.byte_count
        return cls(tuple(pieces), (clock,) * len(pieces))

    def joined(self) -> bytes:
        """Return the bytes of all BUFFERs, in layout order."""
        return b"".join(self.pieces)

    def selected(self, selection: Selection | None) -> bytes:
        """Return the bytes of the selected BUFFERs; None: of all."""
        if selection is None:
            return self.joined()
        return b"".join([self.pieces[index] for index in selection.indices()])

    def changed_since(self, clock: int, without: frozenset[int]) -> list[int]:
        """Return the indices of the BUFFERs that changed after `clock`, except `without`."""
        return [index for index, at in enumerate(self.changed_at) if at > clock and index not in without]


NO_BUFFERS = Buffers()


def with_commit(
    central: Buffers, payload: PayloadFormat, data: memoryview, clock: int
) -> tuple[Buffers, frozenset[int]]:
    """Return the BUFFERs after a commit, and the indices of those that it brought.

    Args:
        central: the BUFFERs before the commit.
        payload: the format of the commit.
        data: the payload's BUFFERs.
        clock: of the version that the commit makes. A BUFFER with the same bytes as before has not changed at it.
    """
    pieces: list[bytes] | None = None
    changed_at: list[int] = []
    indices, start = _indices(payload), 0
    for index, tensor in zip(indices, payload.buffers, strict=True):
        stop = start + tensor.byte_count
        piece = bytes(data[start:stop])
        start = stop
        if piece != central.pieces[index]:
            if pieces is None:
                pieces, changed_at = list(central.pieces), list(central.changed_at)
            pieces[index], changed_at[index] = piece, clock
    after = central if pieces is None else Buffers(tuple(pieces), tuple(changed_at))
    return after, frozenset(indices)


def check_finite(given: Buffers, payload: PayloadFormat, data: memoryview) -> None:
    """Raise BadValueError for a value that is not finite in a BUFFER that the worker has changed.

    `given`: the newest version that the session was given. With the bytes that it has there, a BUFFER is unchanged.
    """
    start = 0
    for index, tensor in zip(_indices(payload), payload.buffers, strict=True):
        piece = data[start : start + tensor.byte_count]
        start += tensor.byte_count
        problem = first_non_finite(tensor, np.frombuffer(piece, np.uint8))
        if problem is not None and bytes(piece) != given.pieces[index]:
            raise problem


def _indices(payload: PayloadFormat) -> Sequence[int]:
    return range(len(payload.buffers)) if payload.selection is None else payload.selection.indices()
