"""What the primary sends, and secondaries report (shards.proto)."""

from dataclasses import dataclass, field
from typing import TypeAlias

from gem_core import Layout, WireType
from gem_core.recipe import Recipe
from gem_core.shards import Shard
from gem_server.errors import RefusedError
from gem_server.telemetry.run_totals import RunTotals
from gem_server.telemetry.worker_telemetry import Figures

# Operations, or reports, in one message.
MAX_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class Joined:
    """A session was admitted, or has changed its wire types. `layout`: this shard's; the message has the model's."""

    session_id: bytes
    worker_name: str
    layout: Layout
    delta_wire_type: WireType
    parameter_wire_type: WireType


@dataclass(frozen=True, slots=True)
class Ended:
    """A session ended; no commit of it follows."""

    session_id: bytes
    refusal: RefusedError


@dataclass(frozen=True, slots=True)
class CommitExpected:
    """Says that this is the only commit of its session that can be ordered next."""

    session_id: bytes
    commit_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """A commit was refused on the primary; or, in a report, its piece on a secondary."""

    session_id: bytes
    commit_id: int
    refusal: RefusedError


@dataclass(frozen=True, slots=True)
class CommitOrdered:
    """Apply a commit; `clock`: after it; `eta`: in the delta; `decays`: of the recipe's groups, or empty.

    `withheld`: the worker is quarantined, so its delta counts as 0.
    """

    session_id: bytes
    commit_id: int
    clock: int
    eta: float
    decays: tuple[float, ...] = ()
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class PullOrdered:
    """Refresh a session's snapshot, at `clock`."""

    session_id: bytes
    clock: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Remove an ended session's worker from the rule."""

    session_id: bytes


@dataclass(frozen=True, slots=True)
class ParametersExpected:
    """Only this session can upload the first parameters; empty: none."""

    session_id: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class ParametersOrdered:
    """Install the first parameters."""

    session_id: bytes


@dataclass(frozen=True, slots=True)
class RuleDecided:
    """The first worker has decided the rule: the run's recipe, or that it has none, and the direction."""

    recipe: Recipe | None
    direction: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is finished."""

    reason: str


@dataclass(frozen=True, slots=True)
class RecordEnded:
    """A record of the log ends at `clock`."""

    clock: int


@dataclass(frozen=True, slots=True)
class DurableEverywhere:
    """The logs of all shards have `clock` on their disks."""

    clock: int


@dataclass(frozen=True, slots=True)
class CheckpointCut:
    """Write a checkpoint now; `number` counts them, as two may have one clock."""

    number: int


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    """All shards have this checkpoint."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Report: recovered at the clock that the primary chose."""


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """Report: the log has `clock` on disk."""

    clock: int


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """Report: the checkpoint is on the disk; or why not."""

    number: int
    error: str


@dataclass(frozen=True, slots=True)
class CheckpointNeeded:
    """Report: the log is full or large; `newest`: the last checkpoint's number."""

    newest: int


@dataclass(frozen=True, slots=True)
class ShardState:
    """Report, once a second, and when the run is finished.

    Attributes:
        clock: of the newest commit that the shard has applied.
        anonymous_bytes: memory of its process.
        commits: commits that its process applied, if it keeps telemetry.
        sums: sums over these of `history.STATISTICS`.
        totals: sums over the commits of the whole run; their staleness is not reported.
    """

    clock: int = 0
    anonymous_bytes: int = 0
    commits: int = 0
    sums: tuple[float, ...] = ()
    totals: RunTotals = field(default_factory=RunTotals)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """Report: a worker's figures have changed."""

    worker_name: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class PieceHeld:
    """Report: the piece lies in memory, complete and valid."""

    session_id: bytes
    commit_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ParametersHeld:
    """Report: so do the first parameters."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """Report: this shard cannot serve the session."""

    session_id: bytes
    refusal: RefusedError


@dataclass(frozen=True, slots=True)
class SnapshotOrdered:
    """Keep theta, of `clock`, for pulls without a session."""

    clock: int


Operation: TypeAlias = (
    Joined
    | Ended
    | CommitExpected
    | CommitRefused
    | CommitOrdered
    | PullOrdered
    | Forgotten
    | ParametersExpected
    | ParametersOrdered
    | Finished
    | RecordEnded
    | DurableEverywhere
    | CheckpointCut
    | CheckpointComplete
    | SnapshotOrdered
    | RuleDecided
)
Report: TypeAlias = (
    PieceHeld
    | CommitRefused
    | ParametersHeld
    | SessionRefused
    | Ready
    | RecordWritten
    | CheckpointNeeded
    | CheckpointWritten
    | ShardState
    | WorkerFigures
)


@dataclass(frozen=True, slots=True)
class Hello:
    """What a secondary says first.

    `address`: for workers. `rule`: as JSON. `clocks`: at which it can recover; `run`: of these, if any.
    """

    shard: Shard
    address: str
    rule: str
    clocks: tuple[int, ...]
    run: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The primary's answer: recover at `clock` (0: nothing), of the run with this id and name."""

    clock: int
    run: str
    run_name: str = ""
