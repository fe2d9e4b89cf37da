"""One direction of a link."""

import math
from heapq import heappop, heappush


class SharedLink:
    """Processor sharing: each of n flows has min(`flow_rate`, `rate` / n) bytes/s.

    Flows end in the order of bytes served per flow at their start plus their size (virtual time, Parekh and Gallager
    1993): O(log n) an event.
    """

    def __init__(self, rate: float, flow_rate: float) -> None:
        self._rate = rate
        self._flow_rate = flow_rate
        self._served = 0.0  # bytes per flow
        self._at = 0.0
        self._ends: list[tuple[float, int, int]] = []
        self._flows: dict[int, int] = {}
        self._count = 0

    @property
    def next_end(self) -> float:
        """When the next flow ends; infinite: idle."""
        while self._ends and self._flows.get(self._ends[0][2]) != self._ends[0][1]:
            heappop(self._ends)  # removed
        if not self._ends:
            return math.inf
        return self._at + max(0.0, self._ends[0][0] - self._served) / self._share()

    def enter(self, flow: int, size: int, at: float) -> None:
        """Start a flow."""
        self._advance(at)
        if not self._flows:
            self._served = 0.0  # keeps precision
        self._count += 1
        self._flows[flow] = self._count
        heappush(self._ends, (self._served + size, self._count, flow))

    def remove(self, flow: int, at: float) -> None:
        """End a flow early, if it is in flight."""
        if flow in self._flows:
            self._advance(at)
            del self._flows[flow]

    def pop(self) -> tuple[float, int]:
        """End the next flow: (when, flow)."""
        self._at = self.next_end
        self._served, _, flow = heappop(self._ends)
        del self._flows[flow]
        return self._at, flow

    def _advance(self, at: float) -> None:
        if self._flows:
            self._served += (at - self._at) * self._share()
        self._at = at

    def _share(self) -> float:
        return min(self._flow_rate, self._rate / len(self._flows))
