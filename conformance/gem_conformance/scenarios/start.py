"""Scenarios about Join, the first parameters and pulls."""

from gem_conformance.refusals import BROKEN, CANCELLED, INTERNAL, UNIMPLEMENTED, refusal_of
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.formats import FROZEN
from gem_conformance.scenarios.scenario import END, LARGE, Scenario

__all__ = ["SCENARIOS"]

# fmt: off
SCENARIOS = (
    Scenario("initialise", "there are no parameters yet: the worker uploads its own, pulls and commits", (
        do.await_first_parameters(), *END), is_basic=True),
    Scenario("already-initialised", "another worker's upload came first: the worker pulls those parameters", (
        do.reject_first_parameters(), *END), is_basic=True),
    Scenario("pull", "there are parameters: the worker pulls and commits", (
        do.others_trained(), do.answer_pull(), do.last_commit()), is_basic=True),
    Scenario("pull-torn", "a pull breaks within its parameters, twice: the worker pulls again", (
        do.others_trained(), do.answer_pull(break_after=3), do.others_commit(), do.answer_pull(break_after=1),
        do.others_commit(), do.answer_pull(), *END), LARGE),
    Scenario("pull-ended", "a pull ends with OK before its footer: it is incomplete all the same", (
        do.others_trained(), do.answer_pull(break_after=2, ending=None), do.others_commit(), do.answer_pull(), *END),
        LARGE),
    Scenario("bad-parameters", "a footer does not match its bytes: the worker does not use those parameters", (
        do.others_trained(), do.answer_pull(damaged=True), do.await_header_or_exit(), do.await_payload(), do.apply(),
        do.send_reply(damaged=True), do.await_header_or_exit(), do.answer_commit(), do.last_commit())),
    Scenario("wrong-digest", "the parameters have another layout's digest: the worker ends without training on them", (
        do.others_trained(), do.change_digest(of_join=False), do.expect_error_exit("they are another model's"))),
    Scenario("run-digest", "Join's answer has another digest than the worker would compute: the worker accepts it", (
        do.others_trained(), do.change_digest(of_join=True), *END), FROZEN),
    Scenario("back-off", "Join fails five times: the worker waits longer each time", (
        do.others_trained(), do.break_joins(5, 1.3), *END)),
    Scenario("join-broken", "Join ends with CANCELLED, INTERNAL and UNAVAILABLE: the worker tries again", (
        do.others_trained(), do.refuse_join(CANCELLED), do.refuse_join(INTERNAL), do.refuse_join(BROKEN), *END)),
    Scenario("no-gemps", "Join ends with UNIMPLEMENTED, as at a server of another kind: the worker ends", (
        do.refuse_join(UNIMPLEMENTED), do.expect_error_exit("the peer is no gemps server of this version"))),
    *(
        Scenario(f"final-{reason.lower().replace('_', '-')}", f"Join fails with {reason}: the worker exits with 2", (
            do.refuse_join(refusal_of(reason)), do.expect_error_exit("the refusal is final")))
        for reason in ("CREDENTIALS", "LAYOUT_MISMATCH", "VERSION")
    ),
)
