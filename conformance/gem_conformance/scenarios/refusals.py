"""Scenarios in which the server refuses commits, with the reasons that errors.proto describes and with unknown ones."""

from gem_conformance.refusals import refusal_of
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, END, LARGE, Scenario
from gem_conformance.scenarios.steps import Step

__all__ = ["SCENARIOS"]


def _refused(name: str, about: str, *steps: Step) -> Scenario:
    return Scenario(name, about, (*BEGIN, do.await_header(), *steps))


# fmt: off
SCENARIOS = (
    Scenario("retry-info", "Join and commits are refused with RetryInfo: the worker waits for its delay", (
        do.others_trained(), do.refuse_join(refusal_of("TOO_MANY", 1.0)), do.commit(), do.await_header(),
        do.refuse("WAITING_ROOM", retry_after=1.5), do.await_header(), do.send_proceed(), do.await_chunks(1),
        do.refuse("STALLED", retry_after=1.0), *END), LARGE),
    _refused("draining", "the server shuts down and another one starts: the worker follows the one rule",
        do.refuse("DRAINING", retry_after=1.0), do.await_header(), do.refuse("DRAINING"), do.restart_server(), *END),
    _refused("stale-base", "the base version is stale: the worker follows the one rule", do.refuse("STALE_BASE"), *END),
    _refused("sequence-gap", "a sequence is missing: the worker takes that of Join's answer", do.refuse_gap(3), *END),
    _refused("expired-session", "the session expires: the worker follows the one rule",
        do.refuse("EXPIRED_SESSION"), *END),
    _refused("newer-call", "a newer call takes over: the worker follows the one rule", do.refuse("NEWER_CALL"), *END),
    _refused("bad-value", "a delta is refused for its values: the worker sends another one, or ends with an error",
        do.await_payload(), do.refuse("BAD_VALUE"), do.await_header_or_exit(), do.answer_commit(), do.last_commit()),
    _refused("checksum", "three commits in a row are refused with CHECKSUM: the worker follows the one rule",
        *(do.await_payload(), do.refuse("CHECKSUM", retry_after=0.1), do.await_header()) * 3, do.answer_commit(),
        do.last_commit()),
    Scenario("checksum-always", "every commit is refused with CHECKSUM: after more than five in a row the worker ends",
        (*BEGIN, do.refuse_checksums_until_exit())),
    _refused("not-initialised", "the server has lost its parameters: the worker joins, initializes and pulls",
        do.refuse_without_parameters(), do.await_first_parameters(again=True), *END),
    _refused("no-retry", "a commit is refused for the worker's own fault, without RetryInfo: the worker ends",
        do.refuse("SIZE_MISMATCH"), do.expect_error_exit("the refusal says that it is the worker's own fault")),
    _refused("server-bug", "a refusal has the reason INTERNAL, which reports a bug of the server: the worker ends",
        do.refuse("INTERNAL"), do.expect_error_exit("the refusal reports a bug of the server")),
    _refused("newer-session", "another process has taken this worker's name: the worker exits with 2",
        do.refuse("NEWER_SESSION"), do.expect_error_exit("the refusal is final")),
    _refused("unknown-wait", "an unknown reason with RetryInfo: the worker waits and tries again",
        do.refuse("NEW", retry_after=0.5), *END),
    _refused("unknown-final", "an unknown reason in a final refusal: the worker exits with 2",
        do.refuse("NEW", final=True), do.expect_error_exit("the refusal is final")),
    _refused("unknown-bug", "an unknown reason in a refusal without RetryInfo that is not final: the worker ends",
        do.refuse("NEW"), do.expect_error_exit("the refusal reports a bug")),
)
