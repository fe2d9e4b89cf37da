"""Turns: whose request a strict queue serves next. By rank, round after round; or in the order of a trace.

A source of turns knows sessions and the request that was served, not who waits. The event loop's thread only.
"""

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
    """A source of turns. `live()`: the live sessions that may commit; the turn of any other passes on."""

    def __init__(self, live: Callable[[], Sequence[Session]]) -> None:
        self.live = live

    @abstractmethod
    def begin_at(self, clock: int) -> None:
        """The run goes on at this clock; 0: it has no parameters yet. Raises StartupError when it cannot."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether there are no turns any more: then requests are served as they come."""

    @abstractmethod
    def now(self) -> Session | None:
        """Whose turn it is, and is waited for; None when nobody is there, or turns are over."""

    @abstractmethod
    def took(self, request: AnyRequest) -> None:
        """A session's request was taken out to be served: its turn is over, if it was one."""

    @abstractmethod
    def commits_to_come(self) -> Iterator[Session]:
        """The sessions whose commits come next, in order; a session may come again."""

    @abstractmethod
    def places(self) -> Mapping[Session, float]:
        """How far away the next turn of each live session is: the more, the later."""


class RankTurns(Turns):
    """One request of each session in turn, by rank."""

    def __init__(self, live: Callable[[], Sequence[Session]]) -> None:
        super().__init__(live)
        self._rank = 0

    def begin_at(self, clock: int) -> None:
        """With the lowest rank, whatever the clock."""

    @property
    def over(self) -> bool:
        """Never: the ring has no end."""
        return False

    def now(self) -> Session | None:
        """The next rank that is there."""
        return next(iter(self._ring()), None)

    def took(self, request: AnyRequest) -> None:
        """Any request is its session's turn."""
        if request.session is not None:
            self._rank = request.session.worker.rank + 1

    def commits_to_come(self) -> Iterator[Session]:
        """Each session once."""
        return iter(self._ring())

    def places(self) -> Mapping[Session, float]:
        """Their places in the ring."""
        return {session: number for number, session in enumerate(self._ring())}

    def _ring(self) -> list[Session]:
        ring = sorted(self.live(), key=lambda session: session.worker.rank)
        return [s for s in ring if s.worker.rank >= self._rank] + [s for s in ring if s.worker.rank < self._rank]


class TraceTurns(Turns):
    """The turns of a trace, by the rank of the session's worker; when they are over there is no order.

    The turn of a worker that has no session, or has spent its budget, passes on; so does a first pull when the session
    has parameters already, as where the traced worker had to join again. A pull that is no turn (this worker had to
    pull again) is served when its worker's turn comes, and leaves that turn to the commit.
    """

    def __init__(self, live: Callable[[], Sequence[Session]], order: Order, name: str) -> None:
        """`name` is the trace's, for the log and for errors."""
        super().__init__(live)
        self._order = order
        self._name = name
        self._next = 0
        self._commits_of: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        for index, turn in enumerate(order.turns):
            if is_commit(turn):
                self._commits_of[turn].append(index)

    def begin_at(self, clock: int) -> None:
        """Go on behind the turns that made this clock. Raises StartupError when the trace begins later."""
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
        """Whether the trace has no more turns."""
        return self._next >= len(self._order.turns)

    def now(self) -> Session | None:
        """Whose turn it is, after those that pass on."""
        by_rank = self._by_rank()
        while not self.over:
            turn = self._order.turns[self._next]
            session = by_rank.get(rank_of(turn))
            if session is not None and (is_commit(turn) or session.held is None):
                return session
            self._pass()
        return None

    def took(self, request: AnyRequest) -> None:
        """A commit uses its worker's turn up; so does the first pull, unless its caller has gone."""
        if self.over or request.session is None:
            return
        rank = request.session.worker.rank
        is_pull = isinstance(request, PullRequest) and not request.done.done()
        turn = self._order.turns[self._next]
        if (isinstance(request, CommitRequest) and turn == rank) or (is_pull and turn == ~rank):
            self._pass()

    def commits_to_come(self) -> Iterator[Session]:
        """As the trace has them."""
        by_rank = self._by_rank()
        for index in range(self._next, len(self._order.turns)):
            turn = self._order.turns[index]
            if is_commit(turn) and (session := by_rank.get(turn)) is not None:
                yield session

    def places(self) -> Mapping[Session, float]:
        """Turns until each one's next commit; infinite without one."""
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
