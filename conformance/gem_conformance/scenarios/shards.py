"""Scenarios with several servers, each of which holds a part of the model (shards.proto). All take the same steps."""

from dataclasses import replace

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, END, SMALL, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout
from gem_core.wire_types import WireType

__all__ = ["SCENARIOS"]

_WEIGHTS, _STEPS = tensor("weight", (310, 330)), tensor("steps", (), "buffer", "int64")
# The payload for each server is too large for one message, and their lengths differ.
_LARGE = Task(Layout([_WEIGHTS, tensor("bias", (1001,)), _STEPS, tensor("mean", (1001,), "buffer")]))
_INT4 = replace(_LARGE, delta_wire_types=(WireType.INT4_BLOCK,))
_CHANGING_ETA = (do.others_trained(), do.commit(next_eta=0.02), do.commit(next_eta=0.3), do.last_commit())


def _scenario(name: str, about: str, *steps: do.Step, task: Task = _LARGE, shards: int = 2) -> Scenario:
    return Scenario(f"shards-{name}", about, steps, task, is_optional=True, shards=shards, needs=("shards",))


# fmt: off
SCENARIOS = (
    _scenario("first", "three servers have no parameters: the worker uploads its range to each, BUFFERs to the last",
        do.await_first_parameters(), *END, shards=3),
    _scenario("small", "the payload for each server is small enough for one message", *BEGIN, *END, task=SMALL),
    _scenario("eta", "three servers announce different learning rates: the primary's counts", *_CHANGING_ETA, shards=3),
    _scenario("int4", "the ranges of INT4_BLOCK deltas begin at block boundaries", *_CHANGING_ETA, task=_INT4),
    _scenario("retry-info", "all servers refuse a commit with RetryInfo, twice: the worker waits for its delay", *BEGIN,
        do.await_header(), do.refuse("WAITING_ROOM", retry_after=1.0),
        do.await_header(), do.send_proceed(), do.await_chunks(1), do.refuse("STALLED", retry_after=1.0), *END),
    _scenario("no-retry", "all servers refuse a commit without RetryInfo: the worker ends", *BEGIN, do.await_header(),
        do.refuse("SIZE_MISMATCH"), do.expect_error_exit("the refusal says that it is the worker's own fault")),
    _scenario("stale-base", "all servers refuse a commit with STALE_BASE: the worker pulls from all", *BEGIN,
        do.await_header(), do.refuse("STALE_BASE"), *END),
    _scenario("expired", "the session has expired: the worker joins the primary, then the other, and pulls", *BEGIN,
        do.await_header(), do.refuse("EXPIRED_SESSION"), *END),
    _scenario("dropped-reply", "the primary's verdict is lost: the worker does not commit its delta again", *BEGIN,
        do.apply_commit(), do.at_server("last", do.send_reply()),
        do.at_server("primary", do.break_stream()), do.last_commit()),
    _scenario("torn-piece", "one piece of a commit is lost, and the other server refuses its own with STALLED", *BEGIN,
        do.await_header(), do.at_server("last", do.send_proceed(), do.await_chunks(1), do.break_stream()),
        do.at_server("primary", do.await_payload(), do.refuse("STALLED", retry_after=0.5, alone=True)), *END),
    _scenario("restart", "both servers restart, and have lost a commit", *BEGIN,
        do.commit(), do.await_header(), do.restart_server(lost=1), *END),
)
