"""Messages on the virtual clock."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gem_simulator.events import Kind
from gem_simulator.link import SharedLink

if TYPE_CHECKING:
    from gem_simulator.timeline import TimelineSettings

# gemps.limits
WHOLE_PAYLOAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Links:
    """Rates in bytes/s of each direction, and payloads.

    `uploads`: concurrent commits; 0: unlimited, without permission.
    """

    rate: float
    worker_rate: float
    delta_bytes: int
    reply_bytes: int
    uploads: int = 0


@dataclass(slots=True)
class Member:
    """A worker. `next`: request in flight or queued."""

    rank: int
    compute: Iterator[float]
    dies: float
    next: Kind = Kind.PULLED
    arrives: float = 0.0
    steps: int = 0


class Network(Protocol):
    """Delivers requests and replies."""

    @property
    def next_at(self) -> float:
        """Time of the next `step`; infinite: nothing is in flight."""

    def step(self) -> None:
        """Advance to `next_at`."""

    def send_pull(self, member: Member, at: float) -> None:
        """Send a new worker's first request."""

    def send_reply(self, member: Member, at: float) -> None:
        """Send a reply, then the worker's next request."""


def network_of(timing: "TimelineSettings", put: Callable[[Member], None]) -> Network:
    """The network for `timing`; calls `put` with each request."""
    return _ConstantDelays(timing, put) if timing.links is None else _Transfers(timing, timing.links, put)


class _ConstantDelays:
    next_at = math.inf

    def __init__(self, timing: "TimelineSettings", put: Callable[[Member], None]) -> None:
        self._timing = timing
        self._put = put

    def step(self) -> None:
        raise AssertionError("nothing is in flight")

    def send_pull(self, member: Member, at: float) -> None:
        member.arrives = at + self._timing.network
        self._put(member)

    def send_reply(self, member: Member, at: float) -> None:
        timing = self._timing
        if timing.is_over_for(member):
            return
        answered = at + timing.network
        if member.next is Kind.FETCHED:  # rescaling takes no time
            member.next, member.arrives = Kind.COMMITTED, answered + timing.network
        else:
            member.next = timing.requests[0]
            member.arrives = answered + timing.seconds_of_step(member) + timing.network
        self._put(member)


class _Transfers:
    """Payloads share links. A commit holds a staging buffer from its permission until applied."""

    def __init__(self, timing: "TimelineSettings", links: Links, put: Callable[[Member], None]) -> None:
        self._timing = timing
        self._links = links
        self._put = put
        self._up = SharedLink(links.rate, links.worker_rate)
        self._down = SharedLink(links.rate, links.worker_rate)
        self._members: dict[int, Member] = {}
        self._events: list[tuple[float, int, Callable[[Member, float], None], Member]] = []
        self._count = 0
        self._free: float = links.uploads or math.inf
        self._waiting: deque[Member] = deque()
        self._uploading: set[int] = set()

    @property
    def next_at(self) -> float:
        return min(self._events[0][0] if self._events else math.inf, self._up.next_end, self._down.next_end)

    def step(self) -> None:
        if self._events and self._events[0][0] <= self.next_at:
            at, _, act, member = heapq.heappop(self._events)
            act(member, at)
        elif self._up.next_end <= self._down.next_end:
            at, rank = self._up.pop()
            self._later(at + self._timing.network, self._arrive, self._members[rank])
        else:
            at, rank = self._down.pop()
            self._compute(self._members[rank], at)

    def send_pull(self, member: Member, at: float) -> None:
        self._members[member.rank] = member
        if member.dies < math.inf:
            self._later(member.dies, self._die, member)
        member.arrives = at + self._timing.network
        self._put(member)

    def send_reply(self, member: Member, at: float) -> None:
        if member.next is Kind.COMMITTED:
            self._later(at, self._release, member)
        self._later(at + self._timing.network, self._download, member)

    def _later(self, at: float, act: Callable[[Member, float], None], member: Member) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, act, member))

    def _download(self, member: Member, at: float) -> None:
        if at < member.dies:
            self._down.enter(member.rank, self._links.reply_bytes, at)

    def _compute(self, member: Member, at: float) -> None:
        if self._timing.is_over_for(member):
            return
        member.next = Kind.COMMITTED
        ready = at + self._timing.seconds_of_step(member)
        if self._links.uploads:
            self._later(ready + self._timing.network, self._ask, member)
        else:
            self._later(ready, self._upload, member)

    def _ask(self, member: Member, at: float) -> None:
        self._waiting.append(member)
        self._grant(at)

    def _grant(self, at: float) -> None:
        while self._free and self._waiting:
            member = self._waiting.popleft()
            if at < member.dies:
                self._free -= 1
                self._uploading.add(member.rank)
                self._later(at + self._timing.network, self._upload, member)

    def _upload(self, member: Member, at: float) -> None:
        if at < member.dies:
            self._up.enter(member.rank, self._links.delta_bytes, at)

    def _arrive(self, member: Member, at: float) -> None:
        if at < member.dies:
            self._uploading.discard(member.rank)
            member.arrives = at
            self._put(member)

    def _release(self, member: Member, at: float) -> None:
        self._free += 1
        self._grant(at)

    def _die(self, member: Member, at: float) -> None:
        self._up.remove(member.rank, at)
        self._down.remove(member.rank, at)
        if member.rank in self._uploading:
            self._uploading.discard(member.rank)
            self._release(member, at)
