"""The order of requests and staging buffers."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from gem_server.flow.requests import AnyRequest, CommitRequest
from gem_server.flow.staging_pool import BufferLease, Purpose
from gem_server.flow.turns import RankTurns
from gem_server.state.sessions import Session


class QueueClosedError(Exception):
    """The queue is closed and empty."""


class RequestQueue(ABC):
    """Complete requests for the applying task."""

    def __init__(self, started: Callable[[], bool] = lambda: True) -> None:
        self._started = started
        self._closed = False
        self._wake: asyncio.Future[None] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Waiting requests."""

    @abstractmethod
    def put(self, request: AnyRequest) -> None:
        """Add a complete request."""

    @abstractmethod
    def next(self) -> AnyRequest | None:
        """Remove and return the next request, if any."""

    def pick(self, waiting: Sequence[BufferLease], holding: Sequence[BufferLease]) -> BufferLease | None:
        """Choose who gets a buffer: the first; before training, an Initialize."""
        if waiting and self._started():
            return waiting[0]
        return next((hold for hold in waiting if hold.purpose is Purpose.INITIALIZE), None)

    def last(self, waiting: Sequence[BufferLease]) -> BufferLease:
        """Choose who would get a buffer last."""
        return waiting[-1]

    @property
    def is_strict(self) -> bool:
        """Whether turns are waited for."""
        return False

    def blocked(self) -> bool:
        """Whether complete requests wait for an incomplete one."""
        return False

    def sessions_changed(self) -> None:
        """Handle a change of sessions, budgets or run."""
        self.wake()

    def close(self) -> None:
        """End `get` after the remaining requests."""
        self._closed = True
        self.wake()

    async def get(self) -> AnyRequest:
        """Wait for the next request. Raises QueueClosedError."""
        while True:
            request = self.next()
            if request is not None:
                return request
            if self._closed:
                raise QueueClosedError
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def wake(self) -> None:
        """Make `get` check again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class FifoQueue(RequestQueue):
    """First in, first out."""

    def __init__(self, started: Callable[[], bool] = lambda: True) -> None:
        super().__init__(started)
        self._requests: deque[AnyRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: AnyRequest) -> None:
        """Append the request."""
        self._requests.append(request)
        self.wake()

    def next(self) -> AnyRequest | None:
        """Pop the oldest request."""
        return self._requests.popleft() if self._requests else None


class StrictQueue(RequestQueue):
    """Serves one request per turn.

    Requests outside turns (Initialize, pulls without a session, resumed transfers, sessions that may not commit) go
    first. A session's requests stay in order.
    """

    def __init__(self, turns: RankTurns, started: Callable[[], bool]) -> None:
        super().__init__(started)
        self._turns = turns
        self._in_turn: dict[Session, deque[AnyRequest]] = {}
        self._at_once: deque[AnyRequest] = deque()
        self._served: BufferLease | None = None

    def __len__(self) -> int:
        return sum(map(len, self._in_turn.values())) + len(self._at_once)

    def put(self, request: AnyRequest) -> None:
        """Add to the session's line, or outside turns."""
        session = request.session
        if session is not None and request.in_turn and (session in self._in_turn or session in self._turns.live()):
            self._in_turn.setdefault(session, deque()).append(request)
        else:
            self._at_once.append(request)
        self.wake()

    def next(self) -> AnyRequest | None:
        """A request outside turns, or of the current turn."""
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
            places = self._turns.distances()
            return min(self._in_turn, key=lambda session: places[session])
        return self._turns.now() if self._started() else None

    def _first_of(self, session: Session) -> AnyRequest:
        line = self._in_turn[session]
        request = line.popleft()
        if not line:
            del self._in_turn[session]
        return request

    def pick(self, waiting: Sequence[BufferLease], holding: Sequence[BufferLease]) -> BufferLease | None:
        """Grant buffers in the order of turns.

        Otherwise complete commits could fill the pool and wait for the turn of a session that gets no buffer.
        """
        wanting = {hold.session: hold for hold in waiting if hold.purpose is Purpose.COMMIT}
        live = set(self._turns.live())
        for hold in waiting:
            if hold.purpose is Purpose.INITIALIZE or hold.session not in live:
                return hold
        if not self._started():
            return None
        ahead = {hold.session for hold in holding if hold.purpose is Purpose.COMMIT and hold is not self._served}
        for session in self._turns.to_come():
            if session not in ahead:
                return wanting.get(session)
        return None

    def last(self, waiting: Sequence[BufferLease]) -> BufferLease:
        """Choose the farthest turn."""
        places = self._turns.distances()
        return max(waiting, key=lambda hold: -1 if hold.purpose is Purpose.INITIALIZE else places.get(hold.session, -1))

    @property
    def is_strict(self) -> bool:
        """Whether turns are waited for: always."""
        return True

    def blocked(self) -> bool:
        """Whether complete requests wait for another's turn."""
        return bool(self._in_turn)
