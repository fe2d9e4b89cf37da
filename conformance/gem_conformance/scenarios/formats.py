"""Layouts and wire types."""

from dataclasses import replace

from gem_conformance.play import Play
from gem_conformance.scenarios.scenario import LARGE, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import ElementType, Layout
from gem_core.wire_types import BLOCKS, ENCODED, WireType

__all__ = ["SCENARIOS"]


def begin_commits(play: Play) -> None:
    """Use a generic learning rate, then ties."""
    play.initialised_by_others()
    play.commit(next_eta=0.5)
    play.commit()


def commits(play: Play) -> None:
    """Use a generic learning rate, then ties."""
    begin_commits(play)
    play.last_commit()


def coarse_commits(play: Play) -> None:
    """Leave out much before a small delta."""
    play.central.eta = 0.5
    play.initialised_by_others()
    play.commit(next_eta=0.05)
    play.commit()
    play.last_commit()


def exact_commits(play: Play) -> None:
    """Keep values exact."""
    play.central.eta = 0.5
    play.initialised_by_others(narrow=True)
    play.commit()
    play.last_commit()


def differences(play: Play) -> None:
    """Break a difference, lose one."""
    begin_commits(play)
    commit = play.apply_next()
    play.reply(commit, tear_after=1)
    play.commit()
    commit = play.apply_next()
    play.tear(commit)
    play.commit()
    play.commit()
    play.last_commit()


def initialise(play: Play) -> None:
    """All kinds of tensors."""
    play.central.eta = 0.5
    play.initialise()
    play.commit()
    play.last_commit()


def _tensors(count: int) -> Task:
    shapes = ((), (3,), (0, 4), (2, 2))
    parameters = [tensor(f"layer{index}.weight", shapes[index % 4]) for index in range(count - 200)]
    buffers = [tensor(f"layer{index}.count", (), "buffer", "int64") for index in range(200)]
    return Task(Layout([*parameters, *buffers]))


# Chunks are cut within a BUFFER, not at multiples of 4.
_KINDS = Task(
    Layout(
        [
            tensor("weight", (30, 20), "parameter", "float32", "head.weight", "decoder.weight"),
            tensor("scale", ()),
            tensor("steps", (), "buffer", "int64"),
            tensor("mean", (19_000,), "buffer", "float32"),
            tensor("counts", (5,), "buffer", "int32"),
            tensor("mask", (9,), "buffer", "bool"),
            tensor("table", (80_013,), "buffer", "uint8"),
            tensor("frozen.weight", (11, 3), "frozen", "float32", "frozen.tied"),
            tensor("frozen.table", (80_013,), "frozen", "uint8"),
        ]
    )
)
_SENT = set(ElementType) - {ElementType.OTHER}
_TYPES = Task(
    Layout(
        [
            tensor("trained.as_float32", (40, 3)),
            tensor("trained.as_float64", (21,), "parameter", "float64"),
            tensor("trained.as_float16", (19,), "parameter", "float16"),
            tensor("trained.as_bfloat16", (17,), "parameter", "bfloat16"),
            *(
                tensor(f"kept.as_{one.value}", (3,), "buffer", one.value)
                for one in sorted(_SENT, key=lambda one: (-one.byte_size, f"torch.{one.value}"))
            ),
            *(tensor(f"frozen.as_{one.value}", (3,), "frozen", one.value) for one in ElementType),
        ]
    )
)
_EMPTY = Task(
    Layout(
        [
            tensor("nothing", (0,)),
            tensor("weight", (8, 8)),
            tensor("no_rows", (0, 7)),
            tensor("bias", (8,)),
            tensor("no_columns", (7, 0)),
            tensor("empty", (0,), "buffer"),
            tensor("count", (2,), "buffer"),
            tensor("frozen", (3, 0), "frozen"),
        ]
    )
)

_NOTHING = Task(Layout([tensor("nothing", (0,)), tensor("no_rows", (0, 7))]))


def _wire(deltas: bool, wire_type: WireType) -> Scenario:
    types = (wire_type,)
    task = replace(LARGE, delta_wire_types=types) if deltas else replace(LARGE, parameter_wire_types=types)
    what, name = ("deltas", "delta") if deltas else ("parameters", "parameter")
    play, more = commits, ""
    if deltas and wire_type in BLOCKS:
        play, more = coarse_commits, ": what one leaves out is added to the next"
    elif wire_type in BLOCKS:
        play, more = differences, ": replies are differences, until one is lost"
    return Scenario(
        f"{name}-{wire_type.name.lower().replace('_', '-')}",
        f"{what} travel as {wire_type.name}{more}",
        play,
        task,
        may_not_speak=wire_type is not WireType.FLOAT32,
    )


SCENARIOS = (
    *(_wire(deltas, one) for deltas in (True, False) for one in sorted(ENCODED)),
    Scenario("buffers-frozen", "BUFFERs go along, FROZEN tensors never", commits, _KINDS),
    Scenario("buffers-first", "BUFFERs in the first upload, no FROZEN tensors", initialise, _KINDS),
    Scenario("element-types", "tensors of every element type", exact_commits, _TYPES, may_not_speak=True),
    Scenario("empty-tensor", "tensors of 0 elements", commits, _EMPTY),
    Scenario(
        "empty-payload",
        "all tensors have 0 elements: no chunk, a footer alone",
        initialise,
        _NOTHING,
        may_not_speak=True,
    ),
    Scenario("many-tensors", "a layout of 10 000 tensors", commits, _tensors(10_000)),
)
