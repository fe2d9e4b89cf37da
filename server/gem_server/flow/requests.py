"""What waits in the queue: complete requests, each with a future for its outcome.

A request is complete when the server has everything it needs to serve it; from then on it waits for nobody.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gem_server.flow.calls import Call
from gem_server.flow.reading import Reader
from gem_server.flow.staging import Hold
from gem_server.state.central_variable import Version
from gem_server.state.ledger import Content, Verdict
from gem_server.state.sessions import Session

Outcome = TypeVar("Outcome")


def _new_future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Request(Generic[Outcome]):
    """One complete request. `done` resolves when it was served; a caller that has gone cancels it."""

    session: Session | None
    done: "asyncio.Future[Outcome]" = field(default_factory=_new_future, kw_only=True)
    enqueued_at: float = field(default=0.0, kw_only=True)

    @property
    def in_turn(self) -> bool:
        """Whether it takes its session's turn where requests are served by turns."""
        return False

    def resolve(self, outcome: Outcome) -> bool:
        """Hand the outcome over; False when nobody waits for it any more."""
        if self.done.done():
            return False
        self.done.set_result(outcome)
        return True

    def fail(self, error: BaseException) -> None:
        """Hand an error over, if anybody still waits."""
        if not self.done.done():
            self.done.set_exception(error)


AnyRequest: TypeAlias = Request[Any]


class Applied(NamedTuple):
    """A commit's outcome: its verdict, and the fresh snapshot to stream (None: its call has gone meanwhile)."""

    verdict: Verdict
    reader: Reader | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A pull's outcome when the caller has the current version already."""

    version: Version


@dataclass(slots=True, eq=False)
class CommitRequest(Request[Applied]):
    """A complete, valid commit. It is always applied; `hold.buffer` belongs to the queue now.

    `base` is the version that its gradient was computed at, and the session holds it.
    """

    session: Session
    call: Call
    hold: Hold
    sequence: int
    base: Version
    content: Content
    loss: float | None
    samples: int
    _applied: "asyncio.Future[None] | None" = field(default=None, kw_only=True)

    @property
    def in_turn(self) -> bool:
        """Commits take turns."""
        return True

    def when_applied(self) -> "asyncio.Future[None]":
        """Resolves when it was, also where the call that waits for `done` has gone; for who asks before that."""
        if self._applied is None:
            self._applied = _new_future()
        return self._applied

    def was_applied(self) -> None:
        """Tell who waits for that."""
        if self._applied is not None:
            self._applied.set_result(None)


@dataclass(slots=True, eq=False)
class PullRequest(Request[Reader | Unchanged]):
    """A session's pull: refreshes its snapshot to the central variable, and leaves the moment."""

    session: Session
    call: Call
    known_version: Version | None

    @property
    def in_turn(self) -> bool:
        """Pulls take turns, so that what each worker holds does not depend on timing."""
        return True


@dataclass(slots=True, eq=False)
class SnapshotRequest(Request[Reader]):
    """Read a session's snapshot unchanged: to go on with a torn transfer of `version`, or (None) to answer a repeat.

    It stands in the queue so that it never reads what the applying task is writing.
    """

    session: Session
    call: Call
    version: Version | None


@dataclass(slots=True, eq=False)
class SharedPullRequest(Request[Reader | Unchanged]):
    """A pull without a session, from a counted snapshot that such readers share."""

    session: None
    call: Call
    known_version: Version | None


@dataclass(slots=True, eq=False)
class InitializeRequest(Request[bool]):
    """A complete, valid upload of first parameters; the outcome says whether it won."""

    session: Session
    parameters: NDArray[np.float32]
    buffers: bytes
    constants: bytes


@dataclass(slots=True, eq=False)
class ForgetRequest(Request[None]):
    """A session has ended: what its worker left in the rule's vectors of the run goes, after its last commit."""

    session: Session


@dataclass(slots=True, eq=False)
class CutRequest(Request[tuple[dict[str, Any], Reader]]):
    """The whole state at one point: what `describe` says of it, and a reader of the parameters (for a checkpoint)."""

    session: None
    call: Call
    describe: Callable[[], dict[str, Any]]
