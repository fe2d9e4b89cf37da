"""Refusals, as the table of errors.proto has them."""

from gem_conformance.refusals import refusal
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, END, LARGE, Scenario
from gem_conformance.scenarios.steps import Step

__all__ = ["SCENARIOS"]


def _refused(name: str, about: str, *behind: Step) -> Scenario:
    return Scenario(name, about, (*BEGIN, do.header(), *behind))


# fmt: off
SCENARIOS = (
    Scenario("retry-info", "refused with RetryInfo: not before its delay", (
        do.trained(), do.join_refused(refusal("TOO_MANY", 1.0)), do.commit(), do.header(),
        do.refuse("WAITING_ROOM", retry_after=1.5), do.header(), do.proceed(), do.chunks(1),
        do.refuse("STALLED", retry_after=1.0), *END), LARGE),
    _refused("draining", "the server shuts down, another one comes", do.refuse("DRAINING", retry_after=1.0),
        do.header(), do.refuse("DRAINING"), do.restart(), *END),
    _refused("stale-base", "refused as stale: the rule", do.refuse("STALE_BASE"), *END),
    _refused("sequence-gap", "refused as a gap: Join returns the sequence", do.refuse_gap(3), *END),
    _refused("expired-session", "the session has expired: the rule", do.refuse("EXPIRED_SESSION"), *END),
    _refused("newer-call", "a newer call of this session took over: the rule", do.refuse("NEWER_CALL"), *END),
    _refused("bad-value", "refused for its values: never that delta again; the next one, or the end with an error",
        do.payload(), do.refuse("BAD_VALUE"), do.header_or_stop(), do.answer_commit(), do.last_commit()),
    _refused("checksum", "damaged on the way, three times in a row: the rule",
        *(do.payload(), do.refuse("CHECKSUM", retry_after=0.1), do.header()) * 3, do.answer_commit(), do.last_commit()),
    Scenario("checksum-always", "damaged each time: after more than five in a row, stop", (
        *BEGIN, do.refuse_checksums_until_it_stops())),
    _refused("not-initialised", "the server has no parameters any more: Join, Initialize, Pull",
        do.refuse_uninitialised(), do.initialise(again=True), *END),
    _refused("no-retry", "refused without RetryInfo: a bug, stop",
        do.refuse("SIZE_MISMATCH"), do.must_stop("the refusal says that it is the worker's own fault")),
    _refused("server-bug", "refused with the reason INTERNAL, which is no broken stream: stop",
        do.refuse("INTERNAL"), do.must_stop("it is a bug of the server")),
    _refused("newer-session", "another process has this worker's name: exit with 2",
        do.refuse("NEWER_SESSION"), do.must_stop("that is final")),
    _refused("unknown-wait", "an unknown reason with RetryInfo: wait", do.refuse("NEW", retry_after=0.5), *END),
    _refused("unknown-final", "an unknown reason whose metadata say final: exit with 2",
        do.refuse("NEW", final=True), do.must_stop("that is final")),
    _refused("unknown-bug", "an unknown reason without both: stop", do.refuse("NEW"), do.must_stop("it is a bug")),
)
