"""The order in which requests are served, and in which staging buffers are granted.

`FifoQueue` serves requests as they became complete, so no worker is favoured. `StrictQueue` serves by turns (turns.py):
with it, what an experiment does no longer depends on timing. A queue is the seam where another order can be put in
(`Server(settings, make_queue=...)`). The event loop's thread only.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from gem_server.flow.requests import AnyRequest, CommitRequest
from gem_server.flow.staging import Hold, Purpose
from gem_server.flow.turns import Turns
from gem_server.state.sessions import Session


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
        if waiting and self._started():
            return waiting[0]
        return next((hold for hold in waiting if hold.purpose is Purpose.INITIALIZE), None)

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


class StrictQueue(RequestQueue):
    """One request at each turn, from the moment training starts; whose turn it is, is waited for.

    What is no session's turn (an Initialize, a pull without a session, the rest of a torn transfer, requests of
    sessions that may not commit) is served at once. Requests of one session stay in their order. When turns are over,
    requests are served as they come.

    `unreserved()`: commits that the run's budget still has room for. Where it is given they go by turns, too; else to
    those who are complete first.
    """

    def __init__(
        self, turns: Turns, started: Callable[[], bool], unreserved: Callable[[], float] = lambda: math.inf
    ) -> None:
        super().__init__(started)
        self._turns = turns
        self._unreserved = unreserved
        self._in_turn: dict[Session, deque[AnyRequest]] = {}
        self._at_once: deque[AnyRequest] = deque()
        self._served: Hold | None = None  # of the commit that was taken out last; its turn is over

    def __len__(self) -> int:
        return sum(map(len, self._in_turn.values())) + len(self._at_once)

    def put(self, request: AnyRequest) -> None:
        """To its session's line, to be served at its turn, or to be served at once."""
        session = request.session
        if session is not None and request.in_turn and (session in self._in_turn or session in self._turns.live()):
            self._in_turn.setdefault(session, deque()).append(request)
        else:
            self._at_once.append(request)
        self.wake()

    def next(self) -> AnyRequest | None:
        """What is no session's turn; else the request of the session whose turn it is, if it is there."""
        self._served = None
        if self._at_once:
            return self._at_once.popleft()
        if not self._in_turn:
            return None
        outside = self._in_turn.keys() - set(self._turns.live())
        if outside:
            return self._first_of(min(outside, key=lambda session: session.worker.rank))
        session = self._whose_turn()
        if session not in self._in_turn:
            return None
        request = self._first_of(session)
        self._turns.took(request)
        self._served = request.hold if isinstance(request, CommitRequest) else None
        return request

    def _whose_turn(self) -> Session | None:
        if self._closed:
            places = self._turns.places()
            return min(self._in_turn, key=lambda session: places[session])
        if not self._started():
            return None
        session = self._turns.now()
        if self._turns.over:
            return min(self._in_turn, key=lambda session: self._in_turn[session][0].enqueued_at)
        return session

    def _first_of(self, session: Session) -> AnyRequest:
        line = self._in_turn[session]
        request = line.popleft()
        if not line:
            del self._in_turn[session]
        return request

    def pick(self, waiting: Sequence[Hold], holding: Sequence[Hold]) -> Hold | None:
        """Buffers are granted in the order of turns too: nobody gets one before those whose turn comes earlier.

        Otherwise the pool could fill with commits that wait for one that finds no buffer. Nor does anybody get one
        where what the budget has left may be needed by those before: whoever is complete first would take it from them.
        """
        wanting = {hold.session: hold for hold in waiting if hold.purpose is Purpose.COMMIT}
        live = set(self._turns.live())
        for hold in waiting:
            if hold.purpose is Purpose.INITIALIZE or hold.session not in live:
                return hold
        if not self._started():
            return None
        commits = [hold for hold in holding if hold.purpose is Purpose.COMMIT and hold is not self._served]
        if sum(not hold.complete for hold in commits) >= self._unreserved():
            return None
        self._turns.now()  # or turns of those who have gone would keep buffers from all others
        if self._turns.over:
            return waiting[0]
        ahead = {hold.session for hold in commits}
        for session in self._turns.commits_to_come():
            if session not in ahead:
                return wanting.get(session)
            ahead.remove(session)  # should it come again, nobody else is granted a buffer before it
        return None

    def last(self, waiting: Sequence[Hold]) -> Hold:
        """Who of `waiting` would be the last to get one: whose turn is the farthest away.

        Were it who came last, the room could be full of those whose turn is not yet, and the one whose turn it is would
        be sent away for ever.
        """
        if self._turns.over:
            return waiting[-1]
        places = self._turns.places()
        return max(waiting, key=lambda hold: -1 if hold.purpose is Purpose.INITIALIZE else places.get(hold.session, -1))

    @property
    def is_strict(self) -> bool:
        """Turns are waited for, as long as there are any."""
        return not self._turns.over

    def blocked(self) -> bool:
        """Whether somebody's complete request waits for the turn of another."""
        return bool(self._in_turn)
