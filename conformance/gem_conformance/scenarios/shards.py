"""Several servers (shards.proto), which all take the same steps."""

from dataclasses import replace

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, END, SMALL, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout
from gem_core.wire_types import WireType

__all__ = ["SCENARIOS"]

_WEIGHTS, _STEPS = tensor("weight", (310, 330)), tensor("steps", (), "buffer", "int64")
# Ranges that wait for proceed, of different lengths.
_LARGE = Task(Layout([_WEIGHTS, tensor("bias", (1001,)), _STEPS, tensor("mean", (1001,), "buffer")]))
_INT4 = replace(_LARGE, delta_wire_types=(WireType.INT4_BLOCK,))
_ETA = (do.trained(), do.commit(next_eta=0.02), do.commit(next_eta=0.3), do.last_commit())


def _scenario(name: str, about: str, *steps: do.Step, task: Task = _LARGE, shards: int = 2) -> Scenario:
    return Scenario(f"shards-{name}", about, steps, task, is_optional=True, shards=shards, needs=("shards",))


# fmt: off
SCENARIOS = (
    _scenario("first", "three servers without parameters: to each its range, BUFFERs to the last",
        do.initialise(), *END, shards=3),
    _scenario("small", "ranges that travel whole", *BEGIN, *END, task=SMALL),
    _scenario("eta", "three servers, the learning rate is the primary's", *_ETA, shards=3),
    _scenario("int4", "ranges are cut between blocks", *_ETA, task=_INT4),
    _scenario("retry-info", "refused with RetryInfo, at all servers, twice", *BEGIN,
        do.header(), do.refuse("WAITING_ROOM", retry_after=1.0),
        do.header(), do.proceed(), do.chunks(1), do.refuse("STALLED", retry_after=1.0), *END),
    _scenario("no-retry", "refused without RetryInfo: a bug, stop", *BEGIN, do.header(), do.refuse("SIZE_MISMATCH"),
        do.must_stop("the refusal says that it is the worker's own fault")),
    _scenario("stale-base", "refused as stale: pull from all", *BEGIN, do.header(), do.refuse("STALE_BASE"), *END),
    _scenario("expired", "the session has expired: join the primary, then the other, pull", *BEGIN,
        do.header(), do.refuse("EXPIRED_SESSION"), *END),
    _scenario("dropped-reply", "the primary's verdict is lost: not a second time", *BEGIN,
        do.header(), do.payload(), do.apply(), do.at("last", do.reply()), do.at("primary", do.tear()),
        do.last_commit()),
    _scenario("torn-piece", "one piece breaks: the others refuse theirs with STALLED", *BEGIN, do.header(),
        do.at("last", do.proceed(), do.chunks(1), do.tear()),
        do.at("primary", do.payload(), do.refuse("STALLED", retry_after=0.5, alone=True)), *END),
    _scenario("restart", "other incarnations of both servers", *BEGIN,
        do.commit(), do.header(), do.restart(lost=1), *END),
)
