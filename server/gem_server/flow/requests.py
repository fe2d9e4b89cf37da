"""Complete requests, each with a future for its outcome."""

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
    """One request. `done`: its outcome; cancelled if the caller leaves."""

    session: Session | None
    done: "asyncio.Future[Outcome]" = field(default_factory=_new_future, kw_only=True)
    enqueued_at: float = field(default=0.0, kw_only=True)

    @property
    def in_turn(self) -> bool:
        """Whether it takes a turn."""
        return False

    def resolve(self, outcome: Outcome) -> bool:
        """Set the outcome; return False if `done` already."""
        if self.done.done():
            return False
        self.done.set_result(outcome)
        return True

    def fail(self, error: BaseException) -> None:
        """Set an error unless `done`."""
        if not self.done.done():
            self.done.set_exception(error)


AnyRequest: TypeAlias = Request[Any]


class Applied(NamedTuple):
    """Outcome of a commit; `reader` is None if its session ended."""

    verdict: Verdict
    reader: Reader | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Outcome of a pull of the known version."""

    version: Version


@dataclass(slots=True, eq=False)
class CommitRequest(Request[Applied]):
    """A valid commit, always applied. The queue owns `hold.buffer`; the session holds `base`."""

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
        """Future for the application, independent of the caller's `done`."""
        if self._applied is None:
            self._applied = _new_future()
        return self._applied

    def was_applied(self) -> None:
        """Resolve `when_applied`."""
        if self._applied is not None:
            self._applied.set_result(None)


@dataclass(slots=True, eq=False)
class PullRequest(Request[Reader | Unchanged]):
    """Refreshes a session's snapshot; keeps the moment."""

    session: Session
    call: Call
    known_version: Version | None

    @property
    def in_turn(self) -> bool:
        """Pulls take turns, for reproducible snapshots."""
        return True


@dataclass(slots=True, eq=False)
class SnapshotRequest(Request[Reader]):
    """Reads a session's snapshot: resumes `version`, or (None) answers a repeat. Queued: no reads during writes."""

    session: Session
    call: Call
    version: Version | None


@dataclass(slots=True, eq=False)
class SharedPullRequest(Request[Reader | Unchanged]):
    """A pull without a session."""

    session: None
    call: Call
    known_version: Version | None


@dataclass(slots=True, eq=False)
class InitializeRequest(Request[bool]):
    """An upload of first parameters; outcome: whether it won."""

    session: Session
    parameters: NDArray[np.float32]
    buffers: bytes
    constants: bytes


@dataclass(slots=True, eq=False)
class ForgetRequest(Request[None]):
    """Removes an ended session's worker from the rule."""

    session: Session


@dataclass(slots=True, eq=False)
class CutRequest(Request[tuple[dict[str, Any], Reader]]):
    """Reads the state at one point, for a checkpoint."""

    session: None
    call: Call
    describe: Callable[[], dict[str, Any]]
