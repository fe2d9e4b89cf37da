"""Layouts and wire types."""

from dataclasses import replace

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import LARGE, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import ElementType, Layout
from gem_core.wire_types import BLOCKS, ENCODED, WireType

__all__ = ["BUFFERS", "FROZEN", "SCENARIOS"]


def _tensors(count: int) -> Task:
    shapes = ((), (3,), (0, 4), (2, 2))
    parameters = [tensor(f"layer{index}.weight", shapes[index % 4]) for index in range(count - 200)]
    buffers = [tensor(f"layer{index}.count", (), "buffer", "int64") for index in range(200)]
    return Task(Layout([*parameters, *buffers]))


# Chunks are cut within BUFFERs and their elements.
BUFFERS = Task(
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
FROZEN = Task(Layout([tensor("weight", (9, 7)), tensor("table", (33,), "frozen", "int32")]))
# Two, three and four bytes of UTF-8, of which one takes two units in UTF-16; aliases out of order.
_NAMES = Task(
    Layout(
        [
            tensor("gewicht.größe", (11, 3), "parameter", "float32", "zweites.größe", "erstes.größe", "重さ.größe"),
            tensor("重み.偏り", (5,)),
            tensor("слой.😀", (2,), "buffer", "int32", "слой.ﬀ", "слой.𝄞"),
        ]
    )
)

# fmt: off
# A learning rate without a pattern, then one that makes ties.
_COMMITS = (do.trained(), do.commit(next_eta=0.5), do.commit(), do.last_commit())
_INITIALISE = (do.eta(0.5), do.initialise(), do.commit(), do.last_commit())
# Leave out much before small deltas.
_COARSE = (do.eta(0.5), do.trained(), do.commit(next_eta=0.05), do.commit(), do.last_commit())
_DIFFERENCES = (
    do.trained(), do.commit(next_eta=0.5), do.commit(), do.header(), do.payload(), do.apply(), do.reply(tear_after=1),
    do.commit(), do.header(), do.payload(), do.apply(), do.tear(), do.commit(), do.last_commit())
_DROPPED = (
    do.eta(0.5), do.trained(), do.commit(next_eta=0.05), do.header(), do.payload(), do.refuse("STALE_BASE"),
    do.commit(), do.header(), do.refuse("EXPIRED_SESSION"), do.commit(), do.last_commit())
# fmt: on


def _wire(deltas: bool, wire_type: WireType) -> Scenario:
    types = (wire_type,)
    task = replace(LARGE, delta_wire_types=types) if deltas else replace(LARGE, parameter_wire_types=types)
    what, name = ("deltas", "delta") if deltas else ("parameters", "parameter")
    steps: tuple[do.Step, ...] = _COMMITS
    more = ""
    if deltas and wire_type in BLOCKS:
        steps, more = _COARSE, ": what one leaves out is added to the next"
    elif wire_type in BLOCKS:
        steps, more = _DIFFERENCES, ": replies are differences, until one is lost"
    return Scenario(
        f"{name}-{_plain(wire_type)}",
        f"{what} travel as {wire_type.name}{more}",
        steps,
        task,
        is_optional=wire_type is not WireType.FLOAT32,
    )


def _plain(wire_type: WireType) -> str:
    return wire_type.name.lower().replace("_", "-")


# fmt: off
SCENARIOS = (
    *(_wire(deltas, one) for deltas in (True, False) for one in sorted(ENCODED)),
    *(
        Scenario(f"dropped-{_plain(one)}", f"two deltas in {one.name} are dropped: what they left out is in the next", (
            _DROPPED), replace(LARGE, delta_wire_types=(one,)), is_optional=True)
        for one in sorted(BLOCKS)
    ),
    Scenario("buffers-frozen", "BUFFERs go along, FROZEN tensors never", _COMMITS, BUFFERS),
    Scenario("buffers-first", "BUFFERs in the first upload, no FROZEN tensors", _INITIALISE, BUFFERS),
    Scenario("names", "names outside ASCII, and several aliases", _COMMITS, _NAMES, name_suffix="-größe-重み"),
    Scenario("element-types", "tensors of every element type", (
        do.eta(0.5), do.trained(narrow=True), do.commit(), do.last_commit()), _TYPES, is_optional=True),
    Scenario("empty-tensor", "tensors of 0 elements", _COMMITS, _EMPTY),
    Scenario("empty-payload", "all tensors have 0 elements: no chunk, a footer alone", (
        _INITIALISE), _NOTHING, is_optional=True),
    Scenario("many-tensors", "a layout of 10 000 tensors", _COMMITS, _tensors(10_000)),
)
