"""Who is served when: the virtual clock, and nothing that is learnt.

A worker computes, then what it sends is on its way, waits until it is its turn, is served, and the answer is on its way
back; then it computes again. The server serves one request at a time. None of that depends on what the parameters are,
so it is a sequence of events that can be made without them, looked at, or taken from a recording instead
(recorded.py). Times are seconds of the virtual clock, from 0.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gem_simulator.durations import Durations
from gem_simulator.events import Event, Kind


@dataclass(frozen=True, slots=True)
class Timing:
    """What the virtual clock needs to know.

    Attributes:
        workers: their number; they have ranks from 0.
        compute: seconds that a gradient takes.
        gradients: of a step; more than one where a worker takes local steps.
        slower: how many times longer a gradient takes a worker, by rank.
        network: seconds of a message's way, each.
        service: seconds that the server is busy with a request.
        joins, deaths: when a worker joins (0: at the start) and dies, by rank. A death is noticed at once; what has
            arrived by then is still served.
        round_robin: the server waits for each worker's turn, by rank; else it serves what came first.
        requests: those of a step.
        holds: the server serves nobody else while a step's requests and answers travel.
        steps: of a worker; 0: no limit.
        commits: of all; 0: no limit.
        seconds: after which nothing is served any more; 0: no limit.
        seed: of the compute times.
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
    """`next`: the request that is on its way or waits, and when it arrives."""

    rank: int
    compute: Iterator[float]
    dies: float
    next: Kind = Kind.PULLED
    arrives: float = 0.0
    steps: int = 0


def timeline(timing: Timing) -> Iterator[Event]:
    """The events of a run, in the order in which they take effect at the server."""
    server = _RoundRobin() if timing.round_robin else _Fifo()
    people = _People(timing, server)
    free_at, commits = 0.0, 0
    while server or people.are_coming:
        if not server:
            yield from people.come_and_go(people.next_at)
            continue
        yield from people.come_and_go(max(free_at, server.next_arrival()))
        worker = server.take()
        if worker.arrives > worker.dies:
            continue
        begins = max(free_at, worker.arrives)
        if timing.seconds and begins + timing.service > timing.seconds:
            break
        free_at = begins + timing.service
        if timing.holds and worker.next is Kind.COMMITTED:
            free_at += 2 * timing.network  # the parameters' way there, and the update's way back
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
    """Who joins and who dies, and when; whoever has joined is known to the server."""

    def __init__(self, timing: Timing, server: "_Fifo | _RoundRobin") -> None:
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


def _go_on(worker: _Worker, timing: Timing, served_at: float) -> None:
    """What the worker asks for next, and when that arrives."""
    answered = served_at + timing.network
    if worker.next is Kind.FETCHED:  # rescaling takes no time
        worker.next, worker.arrives = Kind.COMMITTED, answered + timing.network
        return
    worker.next = timing.requests[0]
    seconds = sum(next(worker.compute) for _ in range(timing.gradients))
    worker.arrives = answered + seconds * timing.slower.get(worker.rank, 1.0) + timing.network


class _Fifo:
    """Requests by arrival; of those that arrive together, the one that was sent first."""

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

    def take(self) -> _Worker:
        return heapq.heappop(self._requests)[2]


class _RoundRobin:
    """One request of each worker in turn, by rank; whoever's turn it is is waited for."""

    def __init__(self) -> None:
        self._ring: dict[int, _Worker] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._ring)

    def next_arrival(self) -> float:
        return self._next().arrives

    def put(self, worker: _Worker) -> None:
        self._ring[worker.rank] = worker

    def take(self) -> _Worker:
        worker = self._next()
        self._turn = worker.rank + 1
        return self._ring.pop(worker.rank)

    def _next(self) -> _Worker:
        ranks = sorted(self._ring)
        return self._ring[next((rank for rank in ranks if rank >= self._turn), ranks[0])]
