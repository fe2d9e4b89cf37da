"""The order in which requests are served, and in which staging buffers are granted.

`FifoQueue` serves requests as they became complete, so no worker is favoured. `RoundRobinQueue` serves one request of
each session in turn, by rank: with it, what an experiment does no longer depends on timing. A queue is the seam where
another order can be put in (`Server(settings, make_queue=...)`). The event loop's thread only.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gem_server.flow.requests import Request
from gem_server.flow.staging import Hold, Purpose
from gem_server.state.sessions import Session

AnyRequest = Request[Any]


class QueueClosedError(Exception):
    """The queue was closed, and everything in it has been served."""


class RequestQueue(ABC):
    """Complete requests on their way to the one applying task."""

    def __init__(self, started: Callable[[], bool] = lambda: True) -> None:
        self._started = started
        self._closed = False
        self._wake: asyncio.Future[None] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Requests that wait."""

    @abstractmethod
    def put(self, request: AnyRequest) -> None:
        """A request has become complete."""

    @abstractmethod
    def next(self) -> AnyRequest | None:
        """Take out the request to serve now, if there is one."""

    def pick(self, waiting: Sequence[Hold], holding: Sequence[Hold]) -> Hold | None:
        """Who of `waiting` gets the next staging buffer: the first, but commits only once training has started."""
        started = self._started()
        return next((hold for hold in waiting if started or hold.purpose is Purpose.INITIALIZE), None)

    def last(self, waiting: Sequence[Hold]) -> Hold:
        """Who of `waiting` would be the last to get one: who has come last."""
        return waiting[-1]

    @property
    def is_strict(self) -> bool:
        """Whether whoever is next in the order is waited for."""
        return False

    def blocked(self) -> bool:
        """Whether complete requests wait for one that is not complete."""
        return False

    def sessions_changed(self) -> None:
        """A session joined, ended or spent its budget, or the run started."""
        self.wake()

    def close(self) -> None:
        """Serve what is complete, then end."""
        self._closed = True
        self.wake()

    async def take(self) -> AnyRequest:
        """The next request to serve, waiting for one; raises QueueClosedError when closed and empty."""
        while True:
            request = self.next()
            if request is not None:
                return request
            if self._closed:
                raise QueueClosedError
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def wake(self) -> None:
        """Let `take` look again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class FifoQueue(RequestQueue):
    """First come, first served."""

    def __init__(self, started: Callable[[], bool] = lambda: True) -> None:
        super().__init__(started)
        self._requests: deque[AnyRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: AnyRequest) -> None:
        """To the end of the line."""
        self._requests.append(request)
        self.wake()

    def next(self) -> AnyRequest | None:
        """The head of the line."""
        return self._requests.popleft() if self._requests else None


class RoundRobinQueue(RequestQueue):
    """One request of each session in turn, by rank, from the moment training starts.

    The ring is made of the live sessions that may commit. A session whose turn it is is waited for; when it ends its
    turn passes on. What is no session's turn (an Initialize, a pull without a session, the rest of a torn transfer,
    requests of sessions outside the ring) is served at once. Requests of one session stay in their order.
    """

    def __init__(self, ring: Callable[[], Sequence[Session]], started: Callable[[], bool]) -> None:
        super().__init__(started)
        self._ring = ring
        self._turn = 0
        self._in_turn: dict[Session, deque[AnyRequest]] = {}
        self._at_once: deque[AnyRequest] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._in_turn.values())) + len(self._at_once)

    def put(self, request: AnyRequest) -> None:
        """To its session's place in the ring, or to be served at once."""
        session = request.session
        if session is not None and request.in_turn and (session in self._in_turn or session in self._ring()):
            self._in_turn.setdefault(session, deque()).append(request)
        else:
            self._at_once.append(request)
        self.wake()

    def next(self) -> AnyRequest | None:
        """What is no session's turn; else the request of the session whose turn it is, if it is there."""
        if self._at_once:
            return self._at_once.popleft()
        if not self._in_turn:
            return None
        ring = self._from_turn()
        outside = self._in_turn.keys() - set(ring)
        if outside:
            return self._first_of(min(outside, key=lambda session: session.worker.rank))
        if self._closed:
            ring = [session for session in ring if session in self._in_turn]
        elif not self._started():
            return None
        if ring[0] not in self._in_turn:
            return None
        self._turn = ring[0].worker.rank + 1
        return self._first_of(ring[0])

    def pick(self, waiting: Sequence[Hold], holding: Sequence[Hold]) -> Hold | None:
        """Buffers are granted in the ring's order too: nobody gets one before those whose turn comes earlier.

        Otherwise the pool could fill with commits that wait for one that finds no buffer.
        """
        wanting = {hold.session: hold for hold in waiting if hold.purpose is Purpose.COMMIT}
        ring = self._from_turn()
        in_ring = set(ring)
        for hold in waiting:
            if hold.purpose is Purpose.INITIALIZE or hold.session not in in_ring:
                return hold
        if not self._started():
            return None
        ahead = {hold.session for hold in holding} | self._in_turn.keys()
        for session in ring:
            if session not in ahead:
                return wanting.get(session)
        return None

    def last(self, waiting: Sequence[Hold]) -> Hold:
        """Who of `waiting` would be the last to get one: whose turn is the farthest away.

        Were it who came last, the room could be full of those whose turn is not yet, and the one whose turn it is would
        be sent away for ever.
        """
        turns = {session: number for number, session in enumerate(self._from_turn())}
        return max(waiting, key=lambda hold: -1 if hold.purpose is Purpose.INITIALIZE else turns.get(hold.session, -1))

    @property
    def is_strict(self) -> bool:
        """Turns are waited for."""
        return True

    def blocked(self) -> bool:
        """Whether somebody's complete request waits for the turn of another."""
        return bool(self._in_turn)

    def _first_of(self, session: Session) -> AnyRequest:
        line = self._in_turn[session]
        request = line.popleft()
        if not line:
            del self._in_turn[session]
        return request

    def _from_turn(self) -> list[Session]:
        ring = sorted(self._ring(), key=lambda session: session.worker.rank)
        return [s for s in ring if s.worker.rank >= self._turn] + [s for s in ring if s.worker.rank < self._turn]
