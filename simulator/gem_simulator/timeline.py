"""Virtual clock in seconds from 0, independent of the parameters.

The server serves one request at a time.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gem_simulator.durations import Durations
from gem_simulator.events import Event, Kind


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


@dataclass(slots=True)
class _Worker:
    """`next`: request in flight or queued."""

    rank: int
    compute: Iterator[float]
    dies: float
    next: Kind = Kind.PULLED
    arrives: float = 0.0
    steps: int = 0


def timeline(timing: TimelineSettings) -> Iterator[Event]:
    """Yield a run's events in order."""
    server = _RoundRobin() if timing.round_robin else _Fifo()
    people = _People(timing, server)
    free_at, commits = 0.0, 0
    while server or people.are_coming:
        if not server:
            yield from people.come_and_go(people.next_at)
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
        if timing.steps and worker.steps >= timing.steps:
            yield from people.leave(worker.rank, free_at)
            continue
        _go_on(worker, timing, free_at)
        server.put(worker)
    yield from people.all_leave(free_at)


class _People:
    """Joins and deaths."""

    def __init__(self, timing: TimelineSettings, server: "_Fifo | _RoundRobin") -> None:
        self._timing = timing
        self._server = server
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
        return self._times[0][0]

    def come_and_go(self, until: float) -> Iterator[Event]:
        while self._times and self._times[0][0] <= until:
            at, joins, rank = heapq.heappop(self._times)
            if not joins:
                yield from self.leave(rank, at)
                continue
            timing = self._timing
            worker = _Worker(rank, timing.compute.of(timing.seed, rank), timing.deaths.get(rank, math.inf))
            worker.arrives = at + timing.network
            self._here.add(rank)
            self._server.put(worker)
            yield Event(at, Kind.JOINED, rank)

    def leave(self, rank: int, at: float) -> Iterator[Event]:
        if rank in self._here:
            self._here.discard(rank)
            yield Event(at, Kind.LEFT, rank)

    def all_leave(self, at: float) -> Iterator[Event]:
        for rank in sorted(self._here):
            yield from self.leave(rank, at)


def _go_on(worker: _Worker, timing: TimelineSettings, served_at: float) -> None:
    answered = served_at + timing.network
    if worker.next is Kind.FETCHED:  # rescaling takes no time
        worker.next, worker.arrives = Kind.COMMITTED, answered + timing.network
        return
    worker.next = timing.requests[0]
    seconds = sum(next(worker.compute) for _ in range(timing.gradients))
    worker.arrives = answered + seconds * timing.slower.get(worker.rank, 1.0) + timing.network


class _Fifo:
    """Requests by arrival, then `put` order."""

    def __init__(self) -> None:
        self._requests: list[tuple[float, int, _Worker]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._requests)

    def next_arrival(self) -> float:
        return self._requests[0][0]

    def put(self, worker: _Worker) -> None:
        heapq.heappush(self._requests, (worker.arrives, self._count, worker))
        self._count += 1

    def pop(self) -> _Worker:
        return heapq.heappop(self._requests)[2]


class _RoundRobin:
    """Requests in rank order, waiting for each."""

    def __init__(self) -> None:
        self._ring: dict[int, _Worker] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._ring)

    def next_arrival(self) -> float:
        return self._next().arrives

    def put(self, worker: _Worker) -> None:
        self._ring[worker.rank] = worker

    def pop(self) -> _Worker:
        worker = self._next()
        self._turn = worker.rank + 1
        return self._ring.pop(worker.rank)

    def _next(self) -> _Worker:
        ranks = sorted(self._ring)
        return self._ring[next((rank for rank in ranks if rank >= self._turn), ranks[0])]
