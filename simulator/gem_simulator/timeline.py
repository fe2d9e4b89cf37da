"""Virtual clock in seconds from 0, independent of the parameters."""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gem_simulator.durations import Durations
from gem_simulator.events import Event, Kind
from gem_simulator.network import Links, Member, Network, network_of


@dataclass(frozen=True, slots=True)
class TimelineSettings:
    """Input of the virtual clock.

    Attributes:
        slower: factors on compute time, by rank.
        network: seconds per message.
        service: seconds per request.
        joins, deaths: by rank. Requests that arrived before a death are still served.
        round_robin: serve in rank order, waiting for each.
        holds: a step blocks other workers.
        steps: per worker; 0: no limit, as for `commits` and `seconds`.
        links: None: payloads take no time. Only without `round_robin`, `holds` and FETCHED.
    """

    workers: int
    compute: Durations
    gradients: int = 1
    slower: Mapping[int, float] = field(default_factory=dict)
    network: float = 0.0
    service: float = 0.0
    joins: Mapping[int, float] = field(default_factory=dict)
    deaths: Mapping[int, float] = field(default_factory=dict)
    round_robin: bool = False
    requests: tuple[Kind, ...] = (Kind.COMMITTED,)
    holds: bool = False
    steps: int = 0
    commits: int = 0
    seconds: float = 0.0
    seed: int = 0
    links: Links | None = None

    def is_over_for(self, member: Member) -> bool:
        """Whether it has no steps left."""
        return bool(self.steps) and member.steps >= self.steps

    def seconds_of_step(self, member: Member) -> float:
        """Draw its next step's compute time."""
        seconds = sum(next(member.compute) for _ in range(self.gradients))
        return seconds * self.slower.get(member.rank, 1.0)


def timeline(timing: TimelineSettings) -> Iterator[Event]:
    """Yield events in order."""
    server = _RoundRobin() if timing.round_robin else _Fifo()
    network = network_of(timing, server.put)
    people = _People(timing, network)
    free_at, commits = 0.0, 0
    while server or network.next_at < math.inf or people.are_coming:
        if not server or network.next_at <= server.next_arrival():
            if people.next_at <= network.next_at:
                yield from people.come_and_go(people.next_at)
            else:
                network.step()
            continue
        yield from people.come_and_go(max(free_at, server.next_arrival()))
        worker = server.pop()
        if worker.arrives > worker.dies:
            continue
        begins = max(free_at, worker.arrives)
        if timing.seconds and begins + timing.service > timing.seconds:
            break
        free_at = begins + timing.service
        if timing.holds and worker.next is Kind.COMMITTED:
            free_at += 2 * timing.network  # parameters out, update back
        yield from people.come_and_go(free_at)
        yield Event(free_at, worker.next, worker.rank, begins - worker.arrives)
        if worker.next is Kind.COMMITTED:
            worker.steps += 1
            commits += 1
            if timing.commits and commits >= timing.commits:
                break
        if timing.is_over_for(worker):
            yield from people.leave(worker.rank, free_at)
        network.send_reply(worker, free_at)
    yield from people.all_leave(free_at)


class _People:
    def __init__(self, timing: TimelineSettings, network: Network) -> None:
        self._timing = timing
        self._network = network
        self._here: set[int] = set()
        times = [(timing.joins.get(rank, 0.0), True, rank) for rank in range(timing.workers)]
        times = [(at, joins, rank) for at, joins, rank in times if at < timing.deaths.get(rank, math.inf)]
        times += [(at, False, rank) for rank, at in timing.deaths.items()]
        heapq.heapify(times)
        self._times = times

    @property
    def are_coming(self) -> bool:
        return any(joins for _, joins, _ in self._times)

    @property
    def next_at(self) -> float:
        return self._times[0][0] if self._times else math.inf

    def come_and_go(self, until: float) -> Iterator[Event]:
        while self._times and self._times[0][0] <= until:
            at, joins, rank = heapq.heappop(self._times)
            if not joins:
                yield from self.leave(rank, at)
                continue
            timing = self._timing
            worker = Member(rank, timing.compute.of(timing.seed, rank), timing.deaths.get(rank, math.inf))
            self._here.add(rank)
            self._network.send_pull(worker, at)
            yield Event(at, Kind.JOINED, rank)

    def leave(self, rank: int, at: float) -> Iterator[Event]:
        if rank in self._here:
            self._here.discard(rank)
            yield Event(at, Kind.LEFT, rank)

    def all_leave(self, at: float) -> Iterator[Event]:
        for rank in sorted(self._here):
            yield from self.leave(rank, at)


class _Fifo:
    def __init__(self) -> None:
        self._requests: list[tuple[float, int, Member]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._requests)

    def next_arrival(self) -> float:
        return self._requests[0][0]

    def put(self, worker: Member) -> None:
        heapq.heappush(self._requests, (worker.arrives, self._count, worker))
        self._count += 1

    def pop(self) -> Member:
        return heapq.heappop(self._requests)[2]


class _RoundRobin:
    def __init__(self) -> None:
        self._ring: dict[int, Member] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._ring)

    def next_arrival(self) -> float:
        return self._next().arrives

    def put(self, worker: Member) -> None:
        self._ring[worker.rank] = worker

    def pop(self) -> Member:
        worker = self._next()
        self._turn = worker.rank + 1
        return self._ring.pop(worker.rank)

    def _next(self) -> Member:
        ranks = sorted(self._ring)
        return self._ring[next((rank for rank in ranks if rank >= self._turn), ranks[0])]
