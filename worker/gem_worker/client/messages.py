"""The values that the client returns, and their conversion from and to protobuf messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Self

from gemps.v1 import commit_pb2, layout_pb2, run_pb2, session_pb2, transfer_pb2
from google.protobuf.descriptor import EnumDescriptor

from gem_core.errors import RecipeError
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.recipe import Recipe
from gem_core.selection import Selection
from gem_core.shards import combined
from gem_core.wire_types import WireType
from gem_core.worker_step import WorkerStep
from gem_worker.client.errors import ServerMisbehavedError


class RunState(Enum):
    """State of the run (run.proto)."""

    WAITING = "waiting"
    TRAINING = "training"
    FINISHED = "finished"

    @staticmethod
    def from_wire(state: int) -> "RunState":
        """Decode. Raises ServerMisbehavedError for unknown numbers."""
        try:
            return _RUN_STATES[state]
        except KeyError:
            raise ServerMisbehavedError(f"the server reports run state {state}: update this client") from None


_RUN_STATES: dict[int, RunState] = {
    run_pb2.RUN_STATE_WAITING: RunState.WAITING,
    run_pb2.RUN_STATE_TRAINING: RunState.TRAINING,
    run_pb2.RUN_STATE_FINISHED: RunState.FINISHED,
}


@dataclass(frozen=True, slots=True)
class Version:
    """Version of the central variable; clocks compare only within an incarnation."""

    incarnation: int
    clock: int

    @classmethod
    def from_wire(cls, version: transfer_pb2.Version) -> Self:
        """Decode."""
        return cls(version.incarnation, version.clock)

    def to_wire(self) -> transfer_pb2.Version:
        """Encode."""
        return transfer_pb2.Version(incarnation=self.incarnation, clock=self.clock)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of the run (run.proto); a budget of 0 means none.

    `recipe`: how the optimizer of the workers' scripts is translated; None: the server's rule and eta alone count.
    """

    rule: str
    rule_settings: Mapping[str, float]
    eta: float
    eta_schedule: str
    steps: int
    epochs: float
    commits: int
    order: str
    min_workers: int
    seed: int
    local_steps: int
    normalise_local_steps: bool
    direction: str = "gradient"
    clip_norm: float = 0.0
    local_rate: float = 1.0
    scale_local_steps: bool = False
    recipe: Recipe | None = None

    @property
    def worker_step(self) -> WorkerStep:
        """The worker's local steps between two commits."""
        return WorkerStep(self.local_steps, self.normalise_local_steps, self.local_rate, self.scale_local_steps)

    @property
    def gradient_handling(self) -> tuple[object, ...]:
        """The settings of what a worker does with gradients."""
        return self.direction, self.clip_norm, self.worker_step, self.recipe

    @classmethod
    def from_wire(cls, settings: run_pb2.RunSettings) -> Self:
        """Decode; enums become words."""
        return cls(
            rule=settings.rule,
            rule_settings=MappingProxyType(dict(settings.rule_settings)),
            eta=settings.eta,
            eta_schedule=_shown(run_pb2.EtaSchedule.DESCRIPTOR, settings.eta_schedule, "ETA_SCHEDULE_"),
            steps=settings.budget.steps,
            epochs=settings.budget.epochs,
            commits=settings.budget.commits,
            order=_shown(run_pb2.ServingOrder.DESCRIPTOR, settings.order, "SERVING_ORDER_"),
            min_workers=settings.min_workers,
            seed=settings.seed,
            local_steps=max(1, settings.local_steps),
            normalise_local_steps=settings.normalise_local_steps,
            direction=settings.direction or "gradient",
            clip_norm=settings.clip_norm,
            local_rate=settings.local_rate if settings.HasField("local_rate") else 1.0,
            scale_local_steps=settings.scale_local_steps,
            recipe=recipe_of(settings.recipe) if settings.HasField("recipe") else None,
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """Result of Join.

    `host_rank` selects the device. `shards`: further servers, as in session.proto. `progress`: how far the run is, as
    `Verdict.progress` has it. `layout_digest`: what each transfer of parameters names. `features`: those announced ones
    that the session uses. `changed_frozen`: FROZEN tensors, by index, whose values are not the run's. `run_name`,
    `run_id`: of the run; its name may be empty. `commits`: those of this worker's name in the run. None: an earlier
    server does not say.
    """

    rank: int
    host_rank: int
    run_settings: RunSettings
    delta_wire_type: WireType
    parameter_wire_type: WireType
    chunk_bytes: int
    has_parameters: bool
    incarnation: int
    run_state: RunState
    server_version: str
    layout_digest: bytes
    shards: tuple[str, ...] = ()
    progress: float = 0.0
    features: frozenset[str] = frozenset()
    changed_frozen: tuple[int, ...] = ()
    run_name: str = ""
    run_id: str = ""
    commits: int | None = None

    @property
    def wire_types(self) -> tuple[WireType, WireType]:
        """The wire types of deltas and of parameters."""
        return self.delta_wire_type, self.parameter_wire_type

    @classmethod
    def from_wire(cls, response: session_pb2.JoinResponse) -> Self:
        """Decode."""
        return cls(
            rank=response.rank,
            host_rank=response.host_rank,
            run_settings=RunSettings.from_wire(response.settings),
            delta_wire_type=wire_type_of(response.delta_wire_type),
            parameter_wire_type=wire_type_of(response.parameter_wire_type),
            chunk_bytes=response.chunk_bytes,
            has_parameters=response.has_parameters,
            incarnation=response.incarnation,
            run_state=RunState.from_wire(response.run_state),
            server_version=response.server_version,
            shards=tuple(response.shards),
            progress=response.progress,
            layout_digest=response.layout_digest,
            features=frozenset(response.features),
            changed_frozen=tuple(response.changed_frozen),
            run_name=response.run_name,
            run_id=response.run_id,
            commits=response.commits if response.HasField("commits") else None,
        )


class CommitStatistics(NamedTuple):
    """What the rule did with a delta. Fractions and mean_pi are over the elements with delta != 0 (commit.proto)."""

    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    proxy_norm: float
    drift_norm: float
    delta_norm: float
    update_norm: float


class Verdict(NamedTuple):
    """Answer to a commit.

    `duplicate`: stored from an earlier attempt. `pieces`: shards' statistics and elements. `progress`: how far the run
    is, in steps of one worker (commit.proto); schedules of learning rates follow it. `withheld`: the server has
    quarantined this worker, so its delta counted as 0.
    """

    sequence: int
    version: Version
    duplicate: bool
    staleness: int
    run_state: RunState
    next_eta: float
    wire_statistics: commit_pb2.CommitStatistics
    relative_speed: float
    pieces: Sequence[tuple[commit_pb2.CommitStatistics, int]] = ()
    progress: float = 0.0
    withheld: bool = False

    @classmethod
    def from_wire(cls, verdict: commit_pb2.Verdict) -> Self:
        """Decode."""
        return cls(
            verdict.sequence,
            Version.from_wire(verdict.version),
            verdict.duplicate,
            verdict.staleness,
            RunState.from_wire(verdict.run_state),
            verdict.next_eta,
            verdict.statistics,
            verdict.relative_speed,
            progress=verdict.progress,
            withheld=verdict.withheld,
        )

    @property
    def statistics(self) -> CommitStatistics:
        """The statistics of the whole delta, which are decoded when they are first read."""
        if self.pieces:
            pieces, elements = zip(*self.pieces, strict=True)
            return CommitStatistics._make(combined([_statistics_of(one) for one in pieces], elements))
        return _statistics_of(self.wire_statistics)


def _statistics_of(wire: commit_pb2.CommitStatistics) -> CommitStatistics:
    return CommitStatistics(
        wire.mean_pi,
        wire.blocked_fraction,
        wire.clamped_fraction,
        wire.proxy_norm,
        wire.drift_norm,
        wire.delta_norm,
        wire.update_norm,
    )


class CommitOutcome(NamedTuple):
    """Result of a commit; `parameters` are those of `version`.

    `applied`: False if the delta was dropped. `verdict`: None if dropped, or lost in a server restart. `parameters`:
    the caller's buffer, or shared memory until the next call. `buffers`, `rest`: the BUFFERs that came, and their
    bytes, which stay as long; the others are as they were sent, or as they came last. None: all BUFFERs came, and
    follow the PARAMETERs in `parameters`.
    """

    applied: bool
    verdict: Verdict | None
    version: Version
    run_finished: bool
    parameters: memoryview
    buffers: Selection | None = None
    rest: memoryview | None = None


def layout_to_wire(layout: Layout) -> layout_pb2.Layout:
    """Encode."""
    message = layout_pb2.Layout()
    for tensor in layout.tensors:
        message.tensors.add(
            name=tensor.name,
            shape=tensor.shape,
            element_type=layout_pb2.ElementType.Value(f"ELEMENT_TYPE_{tensor.element_type.value.upper()}"),
            kind=layout_pb2.TensorKind.Value(f"TENSOR_KIND_{tensor.kind.value.upper()}"),
            aliases=tensor.aliases,
            role=layout_pb2.TENSOR_ROLE_EMBEDDING if tensor.is_embedding else layout_pb2.TENSOR_ROLE_UNSPECIFIED,
            sha256=tensor.sha256,
        )
    return message


def layout_of(message: layout_pb2.Layout) -> Layout:
    """Decode. Raises gem_core's LayoutError."""
    return Layout(
        TensorSpec(
            name=tensor.name,
            shape=tuple(tensor.shape),
            element_type=ElementType(_word(layout_pb2.ElementType.Name(tensor.element_type), "ELEMENT_TYPE_")),
            kind=TensorKind(_word(layout_pb2.TensorKind.Name(tensor.kind), "TENSOR_KIND_")),
            aliases=tuple(tensor.aliases),
            is_embedding=tensor.role == layout_pb2.TENSOR_ROLE_EMBEDDING,
            sha256=tensor.sha256,
        )
        for tensor in message.tensors
    )


def recipe_to_wire(recipe: Recipe) -> run_pb2.Recipe:
    """Encode."""
    return run_pb2.Recipe(
        kind=recipe.kind.value,
        optimizer=recipe.optimizer,
        groups=[run_pb2.RecipeGroup(settings=dict(group)) for group in recipe.groups],
        group_of_parameter=recipe.group_of_parameter,
    )


def recipe_of(message: run_pb2.Recipe) -> Recipe:
    """Decode. Raises ServerMisbehavedError if it is not legal."""
    try:
        return Recipe(
            message.kind,  # type: ignore[arg-type] # checked there
            message.optimizer,
            tuple(dict(group.settings) for group in message.groups),
            tuple(message.group_of_parameter),
        )
    except RecipeError as error:
        raise ServerMisbehavedError(
            f"the server sent a recipe that is not legal: {error}; update this client"
        ) from None


def to_wire_types(wire_types: Iterable[WireType]) -> list[str]:
    """Enum names, which protobuf accepts."""
    return [f"WIRE_TYPE_{wire_type.name}" for wire_type in wire_types]


def wire_type_of(number: int) -> WireType:
    """Decode. Raises ServerMisbehavedError if unknown."""
    try:
        return WireType(number)
    except ValueError:
        raise ServerMisbehavedError(f"the server chose wire type {number}, which this client does not know") from None


def _shown(enum: EnumDescriptor, number: int, prefix: str) -> str:
    value = enum.values_by_number.get(number)
    return str(number) if value is None else _word(value.name, prefix)


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower().replace("_", "-")
