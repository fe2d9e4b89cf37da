"""Complete requests, each with a future for its outcome."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_server.flow.calls import Call
from gem_server.flow.reader import Reader
from gem_server.flow.staging_pool import BufferLease
from gem_server.state.kept_rule import KeptRule
from gem_server.state.ledger import Content, Verdict
from gem_server.state.sessions import Session
from gem_server.version import Version

if TYPE_CHECKING:
    from gem_server.flow.applier import Applier

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

    async def serve(self, applier: "Applier") -> None:
        """Run in the applying task, unless the caller has left: only commits outlive their callers."""
        if not self.done.done():
            await self._execute(applier)

    async def _execute(self, applier: "Applier") -> None:
        raise NotImplementedError

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
    """Outcome of a commit.

    `reader` is None if its session ended. `buffers`: the BUFFERs that the reply has; None: all.
    """

    verdict: Verdict
    reader: Reader | None
    buffers: Selection | None = None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Outcome of a pull of the known version."""

    version: Version


@dataclass(slots=True, eq=False)
class CommitRequest(Request[Applied]):
    """A valid commit, which is always applied. The queue owns `hold.buffer`, and the session owns `base`.

    Attributes:
        eta: the learning rate in the delta.
        payload: the format of the BUFFERs in `hold.buffer`. None if the model has none.
        decays: the decays of the recipe's groups, or empty.
        norm: the norm of the delta that the worker sent. None if deltas are not bounded.
        withheld: whether the worker is quarantined, so that its delta counts as 0.
    """

    session: Session
    call: Call
    hold: BufferLease
    sequence: int
    base: Version
    content: Content
    loss: float | None
    samples: int
    local_steps: int
    eta: float
    commit_id: int = 0
    payload: PayloadFormat | None = None
    decays: tuple[float, ...] = ()
    norm: float | None = None
    withheld: bool = False
    _applied: "asyncio.Future[None] | None" = field(default=None, kw_only=True)

    @property
    def in_turn(self) -> bool:
        """Commits take turns."""
        return True

    def when_applied(self) -> "asyncio.Future[None]":
        """Future for the application, independent of `done`."""
        if self._applied is None:
            self._applied = _new_future()
        return self._applied

    def was_applied(self) -> None:
        """Resolve `when_applied`."""
        if self._applied is not None:
            self._applied.set_result(None)

    @override
    async def serve(self, applier: "Applier") -> None:
        await applier.apply_commit(self)


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

    @override
    async def serve(self, applier: "Applier") -> None:
        self.session.queued_pulls -= 1
        await Request.serve(self, applier)  # super() fails with slots

    async def _execute(self, applier: "Applier") -> None:
        await applier.pull(self)


@dataclass(slots=True, eq=False)
class SnapshotRequest(Request[Reader]):
    """Reads a session's snapshot: resumes `version`, or (None) answers a repeat. Queued: no reads during writes."""

    session: Session
    call: Call
    version: Version | None

    async def _execute(self, applier: "Applier") -> None:
        await applier.read_snapshot(self)


@dataclass(slots=True, eq=False)
class SharedPullRequest(Request[Reader | Unchanged]):
    """A pull without a session; `kept`: of the version that this shard keeps."""

    session: None
    call: Call
    known_version: Version | None
    kept: Version | None = None

    async def _execute(self, applier: "Applier") -> None:
        await applier.pull_shared(self)


@dataclass(slots=True, eq=False)
class InitializeRequest(Request[bool]):
    """An upload of first parameters; outcome: whether it won."""

    session: Session
    parameters: NDArray[np.float32]
    buffers: bytes
    adapter: bytes

    async def _execute(self, applier: "Applier") -> None:
        self.resolve(await applier.initialize(self))


@dataclass(slots=True, eq=False)
class ForgetRequest(Request[None]):
    """Removes an ended session's worker from the rule."""

    session: Session

    async def _execute(self, applier: "Applier") -> None:
        await applier.forget(self.session)


@dataclass(slots=True, eq=False)
class CutRequest(Request[tuple[dict[str, Any], Reader, KeptRule]]):
    """Reads the state at one point, for a checkpoint."""

    session: None
    call: Call
    describe: Callable[[], dict[str, Any]]

    async def _execute(self, applier: "Applier") -> None:
        await applier.cut(self)
