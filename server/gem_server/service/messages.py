"""Converts protobuf messages to the server's values, and back."""

import math
from functools import lru_cache
from typing import TypeVar

from gemps.framing import count_fields
from gemps.limits import FIELDS_BYTES, RECIPE_BYTES, SAMPLES, TEXT_BYTES
from gemps.v1 import commit_pb2, layout_pb2, run_pb2, status_pb2, transfer_pb2
from google.protobuf.message import DecodeError, Message

from gem_core import ElementType, Layout, LayoutError, Statistics, TensorKind, TensorSpec, WireType
from gem_core.recipe import MAX_GROUP_SETTINGS, MAX_GROUPS, Recipe
from gem_core.selection import Selection
from gem_core.visible_text import describe_invisible, find_invisible
from gem_core.wire_types import BLOCKS, encoded_bytes
from gem_server.errors import Reason, RefusedError
from gem_server.flow import commit_service
from gem_server.rule_choice import RuleChoice
from gem_server.settings import ServerSettings
from gem_server.state.evaluations import Evaluation
from gem_server.state.ledger import Verdict
from gem_server.state.run import RunState
from gem_server.state.schedule import EtaSchedule
from gem_server.state.sessions import Session
from gem_server.version import Handle, Version

AnyMessage = TypeVar("AnyMessage", bound=Message)

_ELEMENT_TYPES = {
    layout_pb2.ELEMENT_TYPE_FLOAT32: ElementType.FLOAT32,
    layout_pb2.ELEMENT_TYPE_FLOAT64: ElementType.FLOAT64,
    layout_pb2.ELEMENT_TYPE_FLOAT16: ElementType.FLOAT16,
    layout_pb2.ELEMENT_TYPE_BFLOAT16: ElementType.BFLOAT16,
    layout_pb2.ELEMENT_TYPE_INT8: ElementType.INT8,
    layout_pb2.ELEMENT_TYPE_INT16: ElementType.INT16,
    layout_pb2.ELEMENT_TYPE_INT32: ElementType.INT32,
    layout_pb2.ELEMENT_TYPE_INT64: ElementType.INT64,
    layout_pb2.ELEMENT_TYPE_UINT8: ElementType.UINT8,
    layout_pb2.ELEMENT_TYPE_BOOL: ElementType.BOOL,
    layout_pb2.ELEMENT_TYPE_OTHER: ElementType.OTHER,
}
_KINDS = {
    layout_pb2.TENSOR_KIND_PARAMETER: TensorKind.PARAMETER,
    layout_pb2.TENSOR_KIND_BUFFER: TensorKind.BUFFER,
    layout_pb2.TENSOR_KIND_FROZEN: TensorKind.FROZEN,
}
_ELEMENT_TYPE_NUMBERS = {value: key for key, value in _ELEMENT_TYPES.items()}
_KIND_NUMBERS = {value: key for key, value in _KINDS.items()}
RUN_STATES = {
    RunState.WAITING: run_pb2.RUN_STATE_WAITING,
    RunState.TRAINING: run_pb2.RUN_STATE_TRAINING,
    RunState.FINISHED: run_pb2.RUN_STATE_FINISHED,
}
_GROUPS = (run_pb2.Recipe.GROUPS_FIELD_NUMBER,)
_SETTINGS_OF_GROUPS = (*_GROUPS, run_pb2.RecipeGroup.SETTINGS_FIELD_NUMBER)
_WIRE_TYPES = {int(one): one for one in WireType}
_ORDERS = {
    "fifo": run_pb2.SERVING_ORDER_FIFO,
    "round-robin": run_pb2.SERVING_ORDER_ROUND_ROBIN,
}
_SCHEDULES = {
    "constant": run_pb2.ETA_SCHEDULE_CONSTANT,
    "step": run_pb2.ETA_SCHEDULE_STEP,
    "cosine": run_pb2.ETA_SCHEDULE_COSINE,
}


def parse(kind: type[AnyMessage], raw: bytes, limit: int = FIELDS_BYTES) -> AnyMessage:
    """Parse a message. Raises MALFORMED if it is not valid, or has more than `limit` bytes."""
    check_size(kind, len(raw), limit)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise RefusedError(
            Reason.MALFORMED, f"these bytes are not a {kind.DESCRIPTOR.full_name}: use code generated from the protos"
        ) from None


def delta_bytes(session: Session) -> tuple[int, int]:
    """Return the number of bytes of a delta's PARAMETERs, and that of all BUFFERs."""
    layout = session.join_info.layout
    return encoded_bytes(session.join_info.delta_wire_type, layout.parameter_count), layout.buffer_bytes


def check_size(kind: type[Message], size: int, limit: int = FIELDS_BYTES) -> None:
    """Raise MALFORMED if a message has more than `limit` bytes."""
    if size > limit:
        name = kind.DESCRIPTOR.name
        what = "JoinRequest besides its layout and recipe" if name == "JoinRequest" else name
        raise RefusedError(Reason.MALFORMED, f"{size} bytes of {what}: send at most {limit}")


def text(value: str, field: str, required: bool = False) -> str:
    """Return the text of a field. Raises MALFORMED if it is too long, or has characters that people would not see."""
    if len(value.encode()) > TEXT_BYTES or (required and not value):
        raise RefusedError(Reason.MALFORMED, f"{field} must have {1 if required else 0} to {TEXT_BYTES} bytes of UTF-8")
    if (at := find_invisible(value)) is not None:
        raise RefusedError(Reason.MALFORMED, f"{field} has {describe_invisible(value, at)}: leave it out")
    return value


def layout_from(message: layout_pb2.Layout) -> Layout:
    """Decode. Raises LayoutError."""
    tensors = []
    for index, spec in enumerate(message.tensors):
        if spec.element_type not in _ELEMENT_TYPES or spec.kind not in _KINDS:
            raise LayoutError(
                f"tensor {index} ({spec.name[:100]!r}) has an unspecified or unknown element_type or kind: set both"
            )
        tensors.append(
            TensorSpec(
                spec.name,
                tuple(spec.shape),
                _ELEMENT_TYPES[spec.element_type],
                _KINDS[spec.kind],
                tuple(spec.aliases),
                spec.role == layout_pb2.TENSOR_ROLE_EMBEDDING,
                spec.sha256,
            )
        )
    return Layout(tensors)


@lru_cache(maxsize=1)
def layout_to(layout: Layout) -> bytes:
    """Serialise, cached (65,536 tensors: 0.2 s)."""
    message = layout_pb2.Layout(
        tensors=[
            layout_pb2.TensorSpec(
                name=spec.name,
                shape=spec.shape,
                element_type=_ELEMENT_TYPE_NUMBERS[spec.element_type],
                kind=_KIND_NUMBERS[spec.kind],
                aliases=spec.aliases,
                role=layout_pb2.TENSOR_ROLE_EMBEDDING if spec.is_embedding else layout_pb2.TENSOR_ROLE_UNSPECIFIED,
                sha256=spec.sha256,
            )
            for spec in layout.tensors
        ]
    )
    return message.SerializeToString()


def version_from(message: transfer_pb2.Version) -> Version:
    """Decode."""
    return Version(message.incarnation, message.clock)


def version_to(version: Version) -> transfer_pb2.Version:
    """Encode."""
    return transfer_pb2.Version(incarnation=version.incarnation, clock=version.clock)


def wire_type_from(number: int) -> WireType:
    """Decode. Raises WIRE_TYPE."""
    wire_type = _wire_type_of_commit(number)
    if wire_type in BLOCKS or wire_type is WireType.SHARED_MEMORY:
        raise RefusedError(Reason.WIRE_TYPE, f"{wire_type.name} is for sessions alone: choose another wire type")
    return wire_type


def header_from(message: commit_pb2.CommitHeader) -> commit_service.Header:
    """Decode. Raises WIRE_TYPE, MALFORMED, and SelectionError."""
    if message.samples > SAMPLES:
        raise RefusedError(Reason.MALFORMED, f"samples is {message.samples}: send at most {SAMPLES}")
    return commit_service.Header(
        message.sequence,
        version_from(message.base_version),
        _wire_type_of_commit(message.wire_type),
        message.byte_count,
        message.loss if message.HasField("loss") else None,
        message.samples,
        message.payload_crc32c if message.HasField("payload_crc32c") else None,
        _handle_from(message.shared_memory) if message.HasField("shared_memory") else None,
        _scale_from(message.scale) if message.HasField("scale") else None,
        message.local_steps,
        message.leaves,
        message.optimizer_steps,
        message.commit_id,
        Selection(tuple(message.buffers.runs)) if message.HasField("buffers") else None,
        message.eta if message.HasField("eta") else None,
        _decays_from(message) if message.decays else (),
    )


def _decays_from(message: commit_pb2.CommitHeader) -> tuple[float, ...]:
    if len(message.decays) > MAX_GROUPS:
        raise RefusedError(
            Reason.MALFORMED, f"{len(message.decays)} decays: send one for each group, at most {MAX_GROUPS}"
        )
    return tuple(message.decays)


def _scale_from(scale: float) -> float:
    if not math.isfinite(scale):
        raise RefusedError(Reason.MALFORMED, f"scale is {scale!r}: send a finite number, or none")
    return scale


def _wire_type_of_commit(number: int) -> WireType:
    known = _WIRE_TYPES.get(number)
    if known is None:
        raise RefusedError(Reason.WIRE_TYPE, f"wire_type {number} is unspecified or unknown: use what Join settled")
    return known


def _handle_from(message: transfer_pb2.SharedMemoryHandle) -> Handle:
    return Handle(message.region, message.offset, message.byte_count)


def handle_to(handle: Handle) -> transfer_pb2.SharedMemoryHandle:
    """Encode."""
    return transfer_pb2.SharedMemoryHandle(region=handle.region, offset=handle.offset, byte_count=handle.byte_count)


def put_verdict(verdict: Verdict, message: commit_pb2.Verdict) -> None:
    """Write in place: twice as fast as copying submessages."""
    message.sequence = verdict.sequence
    version = message.version
    version.incarnation, version.clock = verdict.version
    message.duplicate = verdict.duplicate
    message.staleness = verdict.staleness
    message.run_state = RUN_STATES[verdict.run_state]
    message.next_eta = verdict.next_eta
    if verdict.relative_speed:
        message.relative_speed = verdict.relative_speed
    message.progress = verdict.progress
    message.withheld = verdict.withheld
    put_statistics(verdict.statistics, message.statistics)


def put_statistics(statistics: Statistics, message: commit_pb2.CommitStatistics) -> None:
    """Write commit statistics."""
    message.mean_pi = statistics.mean_pi
    message.blocked_fraction = statistics.blocked_fraction
    message.clamped_fraction = statistics.clamped_fraction
    message.proxy_norm = statistics.proxy_norm
    message.drift_norm = statistics.drift_norm
    message.delta_norm = statistics.delta_norm
    message.update_norm = statistics.update_norm


def statistics_from(message: commit_pb2.CommitStatistics) -> Statistics:
    """Decode."""
    return Statistics(*(getattr(message, name) for name in Statistics._fields))


def parse_recipe(raw: memoryview) -> Recipe:
    """Parse and decode a worker's recipe. Raises MALFORMED, FramingError, RecipeError."""
    check_size(run_pb2.Recipe, len(raw), RECIPE_BYTES)
    for path, most in ((_GROUPS, MAX_GROUPS), (_SETTINGS_OF_GROUPS, MAX_GROUPS * MAX_GROUP_SETTINGS)):
        if count_fields(raw, path, most) > most:
            raise RefusedError(
                Reason.MALFORMED,
                f"a recipe has at most {MAX_GROUPS} groups with {MAX_GROUP_SETTINGS} settings each, and this one has "
                "more: join parameter groups with equal settings",
            )
    return recipe_from(parse(run_pb2.Recipe, bytes(raw), RECIPE_BYTES))


def recipe_from(message: run_pb2.Recipe) -> Recipe:
    """Decode a worker's recipe. Raises RecipeError if it is not legal."""
    return Recipe(
        message.kind,  # type: ignore[arg-type] # checked there
        message.optimizer,
        tuple(dict(group.settings) for group in message.groups),
        tuple(message.group_of_parameter),
    )


def recipe_to(recipe: Recipe, *, with_parameters: bool = True) -> run_pb2.Recipe:
    """Encode a recipe. Without `with_parameters` it lacks the groups of the PARAMETERs, which may be many."""
    return run_pb2.Recipe(
        kind=recipe.kind.value,
        optimizer=recipe.optimizer,
        groups=[run_pb2.RecipeGroup(settings=dict(group)) for group in recipe.groups],
        group_of_parameter=recipe.group_of_parameter if with_parameters else (),
    )


def run_settings_to(settings: ServerSettings, choice: RuleChoice, schedule: EtaSchedule) -> run_pb2.RunSettings:
    """Encode the run's settings; the caller adds the recipe."""
    rule = choice.rule
    return run_pb2.RunSettings(
        rule=choice.rule_name,
        rule_settings=dict(rule.settings),
        eta=schedule.eta,
        eta_schedule=_SCHEDULES[schedule.kind],
        budget=run_pb2.Budget(steps=settings.steps, epochs=settings.epochs, commits=settings.commits),
        order=_ORDERS[settings.order],
        min_workers=settings.min_workers,
        seed=settings.seed,
        local_steps=rule.worker_step.local_steps,
        normalise_local_steps=rule.worker_step.normalise,
        direction=choice.direction if choice.direction != "gradient" else "",
        clip_norm=settings.clip_norm,
        local_rate=rule.worker_step.rate,
        scale_local_steps=rule.worker_step.with_direction(choice.direction).scaled,
    )


def evaluation_to(evaluation: Evaluation) -> status_pb2.Evaluation:
    """Encode."""
    return status_pb2.Evaluation(
        version=version_to(evaluation.version),
        loss=evaluation.loss,
        accuracy=evaluation.accuracy,
        samples=evaluation.samples,
        evaluator=evaluation.evaluator,
        run_seconds=evaluation.run_seconds,
        bits_per_character=evaluation.bits_per_character,
    )
