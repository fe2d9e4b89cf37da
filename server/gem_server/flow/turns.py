"""Turns of a strict queue."""

import logging
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from gem_server.errors import StartupError
from gem_server.flow.requests import AnyRequest, CommitRequest, PullRequest
from gem_server.state.sessions import Session
from gem_trace.order import Order, is_commit, rank_of

logger = logging.getLogger(__name__)


class Turns(ABC):
    """A source of turns. `live()`: sessions that may commit."""

    def __init__(self, live: Callable[[], Sequence[Session]]) -> None:
        self.live = live

    @abstractmethod
    def begin_at(self, clock: int) -> None:
        """Start at `clock` (0: no parameters yet). Raises StartupError."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether no turns are left."""

    @abstractmethod
    def now(self) -> Session | None:
        """The current turn's session, if any."""

    @abstractmethod
    def took(self, request: AnyRequest) -> None:
        """Record a served request, which ends its turn."""

    @abstractmethod
    def commits_to_come(self) -> Iterator[Session]:
        """Yield the sessions of upcoming commits, with repetitions."""

    @abstractmethod
    def distances(self) -> Mapping[Session, float]:
        """Distances to the next turns."""


class RankTurns(Turns):
    """Round robin by rank."""

    def __init__(self, live: Callable[[], Sequence[Session]]) -> None:
        super().__init__(live)
        self._rank = 0

    def begin_at(self, clock: int) -> None:
        """Start with the lowest rank."""

    @property
    def over(self) -> bool:
        """False."""
        return False

    def now(self) -> Session | None:
        """The next live rank."""
        return next(iter(self._ring()), None)

    def took(self, request: AnyRequest) -> None:
        """End the session's turn."""
        if request.session is not None:
            self._rank = request.session.worker.rank + 1

    def commits_to_come(self) -> Iterator[Session]:
        """Yield each session once."""
        return iter(self._ring())

    def distances(self) -> Mapping[Session, float]:
        """Positions in the ring."""
        return {session: number for number, session in enumerate(self._ring())}

    def _ring(self) -> list[Session]:
        ring = sorted(self.live(), key=lambda session: session.worker.rank)
        return [s for s in ring if s.worker.rank >= self._rank] + [s for s in ring if s.worker.rank < self._rank]


class TraceTurns(Turns):
    """The turns of a trace, by worker rank.

    Skips workers without session or budget, and first pulls of sessions with parameters. Extra pulls wait for a turn
    without using it.
    """

    def __init__(self, live: Callable[[], Sequence[Session]], order: Order, name: str) -> None:
        """`name`: for messages."""
        super().__init__(live)
        self._order = order
        self._name = name
        self._next = 0
        self._commits_of: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        for index, turn in enumerate(order.turns):
            if is_commit(turn):
                self._commits_of[turn].append(index)

    def begin_at(self, clock: int) -> None:
        """Continue after `clock`. Raises StartupError if the trace begins later."""
        first, order = max(1, clock), self._order
        if first < order.first_clock:
            raise StartupError(
                f"--order-trace: {self._name} begins at clock {order.first_clock}, and the run is at clock {first}: "
                "choose the trace of a whole run, or resume one that is there (--resume)"
            )
        self._next = order.after(first)
        left = max(0, order.first_clock + order.commits - first)
        logger.info("serving in the order of %s: of %d workers, %d commits to come", self._name, order.workers, left)

    @property
    def over(self) -> bool:
        """Whether the trace has ended."""
        return self._next >= len(self._order.turns)

    def now(self) -> Session | None:
        """The current turn's session, after skips."""
        by_rank = self._by_rank()
        while not self.over:
            turn = self._order.turns[self._next]
            session = by_rank.get(rank_of(turn))
            if session is not None and (is_commit(turn) or session.held is None):
                return session
            self._pass()
        return None

    def took(self, request: AnyRequest) -> None:
        """End the turn on a matching commit or first pull."""
        if self.over or request.session is None:
            return
        rank = request.session.worker.rank
        is_pull = isinstance(request, PullRequest) and not request.done.done()
        turn = self._order.turns[self._next]
        if (isinstance(request, CommitRequest) and turn == rank) or (is_pull and turn == ~rank):
            self._pass()

    def commits_to_come(self) -> Iterator[Session]:
        """Yield sessions in the trace's order."""
        by_rank = self._by_rank()
        for index in range(self._next, len(self._order.turns)):
            turn = self._order.turns[index]
            if is_commit(turn) and (session := by_rank.get(turn)) is not None:
                yield session

    def distances(self) -> Mapping[Session, float]:
        """Turns until each next commit, or infinity."""
        return {session: self._until(rank) for rank, session in self._by_rank().items()}

    def _until(self, rank: int) -> float:
        commits = self._commits_of.get(rank, ())
        found = bisect_left(commits, self._next)
        return commits[found] - self._next if found < len(commits) else float("inf")

    def _by_rank(self) -> dict[int, Session]:
        return {session.worker.rank: session for session in self.live()}

    def _pass(self) -> None:
        self._next += 1
        if self.over:
            logger.info("the order of %s is over: from here on requests are served as they come", self._name)
