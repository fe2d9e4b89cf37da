"""Scenarios about layouts, wire types and the residual of lossy deltas."""

from dataclasses import replace

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import END, LARGE, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import ElementType, Layout
from gem_core.wire_types import BLOCKS, ENCODED, WireType

__all__ = ["BUFFERS", "FROZEN", "SCENARIOS"]


def _tensors(count: int) -> Task:
    shapes = ((), (3,), (0, 4), (2, 2))
    parameters = [tensor(f"layer{index}.weight", shapes[index % 4]) for index in range(count - 200)]
    buffers = [tensor(f"layer{index}.count", (), "buffer", "int64") for index in range(200)]
    return Task(Layout([*parameters, *buffers]))


# Its BUFFERs are larger than a chunk, so that chunks end within BUFFERs and within their elements.
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
# Names have characters of two, three and four bytes in UTF-8; those of four bytes are surrogate pairs in UTF-16, which
# sort differently. The aliases are not sorted.
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
# The first learning rate, 0.05, gives values without a pattern; the second one, 0.5, gives bfloat16 ties to round.
_COMMITS = (do.others_trained(), do.commit(next_eta=0.5), *END)
_INITIALISE = (do.change_eta(0.5), do.await_first_parameters(), *END)
# The encoding of large deltas leaves out much, compared with the small deltas that follow.
_RESIDUAL = (do.change_eta(0.5), do.others_trained(), do.commit(next_eta=0.05), *END)
_DIFFERENCES = (
    do.others_trained(), do.commit(next_eta=0.5), do.commit(), do.apply_commit(), do.send_reply(break_after=1),
    do.commit(), do.apply_commit(), do.break_stream(), *END)
_DROPPED = (
    do.change_eta(0.5), do.others_trained(), do.commit(next_eta=0.05), do.await_header(), do.await_payload(),
    do.refuse("STALE_BASE"), do.commit(), do.await_header(), do.refuse("EXPIRED_SESSION"), *END)
# fmt: on


def _wire(deltas: bool, wire_type: WireType) -> Scenario:
    types = (wire_type,)
    task = replace(LARGE, delta_wire_types=types) if deltas else replace(LARGE, parameter_wire_types=types)
    what, name = ("deltas", "delta") if deltas else ("parameters", "parameter")
    steps: tuple[do.Step, ...] = _COMMITS
    more = ""
    if deltas and wire_type in BLOCKS:
        steps, more = _RESIDUAL, ": the worker adds what one leaves out to the next"
    elif wire_type in BLOCKS:
        steps, more = _DIFFERENCES, ": replies are differences until one is lost"
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
        Scenario(f"dropped-{_plain(one)}", f"two {one.name} deltas are dropped: the next one adds what they left out",
            _DROPPED, replace(LARGE, delta_wire_types=(one,)), is_optional=True)
        for one in sorted(BLOCKS)
    ),
    Scenario("buffers-frozen", "payloads contain BUFFERs, and never FROZEN tensors", _COMMITS, BUFFERS),
    Scenario("buffers-first", "the first upload contains BUFFERs, and no FROZEN tensors", _INITIALISE, BUFFERS),
    Scenario("names", "tensors with non-ASCII names and several aliases", _COMMITS, _NAMES, name_suffix="-größe-重み"),
    Scenario("element-types", "the model has tensors of every element type", (
        do.change_eta(0.5), do.others_trained(narrow=True), *END), _TYPES, is_optional=True),
    Scenario("empty-tensor", "some tensors have 0 elements", _COMMITS, _EMPTY),
    Scenario("empty-payload", "all tensors have 0 elements: a payload is only a footer", _INITIALISE, _NOTHING,
        is_optional=True),
    Scenario("many-tensors", "the model has 10 000 tensors", _COMMITS, _tensors(10_000)),
)
