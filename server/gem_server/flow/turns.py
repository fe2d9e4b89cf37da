"""Turns of a strict queue: round robin by rank."""

from collections.abc import Callable, Mapping, Sequence

from gem_server.flow.requests import AnyRequest
from gem_server.state.sessions import Session


class RankTurns:
    """Gives each session in turn, by rank.

    Attributes:
        live: returns the sessions that may commit.
    """

    def __init__(self, live: Callable[[], Sequence[Session]]) -> None:
        self.live = live
        self._rank = 0

    def now(self) -> Session | None:
        """Return the session whose turn it is; None: there is no session."""
        return next(iter(self.to_come()), None)

    def took(self, request: AnyRequest) -> None:
        """End the turn of the session whose request was served."""
        if request.session is not None:
            self._rank = request.session.worker.rank + 1

    def to_come(self) -> list[Session]:
        """Return the sessions in the order of their next turns, the current one first."""
        ring = sorted(self.live(), key=lambda session: session.worker.rank)
        return [s for s in ring if s.worker.rank >= self._rank] + [s for s in ring if s.worker.rank < self._rank]

    def distances(self) -> Mapping[Session, int]:
        """Return the number of turns before each session's next one."""
        return {session: number for number, session in enumerate(self.to_come())}
