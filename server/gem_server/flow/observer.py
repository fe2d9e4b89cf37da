"""Events of the run; the recorder of traces implements their observer."""

from gem_core import Statistics
from gem_server.flow.requests import CommitRequest
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable
from gem_server.state.sessions import Session
from gem_server.version import Version


class CommitObserver:
    """Sees what the applying task does, before callers do. The methods of this class do nothing."""

    async def bound(self, central: CentralVariable, session: Session) -> None:
        """The run has this session's parameters; its call may end during awaits."""

    async def committed(
        self,
        session: Session,
        request: CommitRequest,
        clock: int,
        staleness: int,
        statistics: Statistics,
        buffers: Buffers,
    ) -> None:
        """A commit was applied; its buffer may be read until this returns. `buffers`: those of the new version."""

    def pulled(self, session: Session, is_first: bool) -> None:
        """A session's snapshot was refreshed; `is_first`: its moment was reset."""

    def pulled_without_session(self, version: Version) -> None:
        """Theta, of this version, is read without a session."""

    def forgotten(self, session: Session) -> None:
        """The rule forgot an ended session's worker."""


class NoCommitObserver(CommitObserver):
    """The observer of a server without a trace, which does nothing."""
