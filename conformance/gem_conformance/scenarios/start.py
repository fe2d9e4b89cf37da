"""Join, first parameters and pulls."""

from gem_conformance.refusals import CANCELLED, INTERNAL, TORN, UNIMPLEMENTED, refusal
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.formats import FROZEN
from gem_conformance.scenarios.scenario import END, LARGE, Scenario

__all__ = ["SCENARIOS"]

# fmt: off
SCENARIOS = (
    Scenario("initialise", "no parameters yet: upload, pull, commit", (do.initialise(), *END), is_basic=True),
    Scenario("already-initialised", "another upload won: pull its parameters", (
        do.already_initialised(), *END), is_basic=True),
    Scenario("pull", "parameters are there: pull, commit", (do.trained(), do.pull(), do.last_commit()), is_basic=True),
    Scenario("pull-torn", "a pull is torn in the middle, twice: pull again", (
        do.trained(), do.pull(tear_after=3), do.others_commit(), do.pull(tear_after=1), do.others_commit(), do.pull(),
        *END), LARGE),
    Scenario("pull-ended", "a pull ends with OK before its footer: that is no end", (
        do.trained(), do.pull(tear_after=2, torn=None), do.others_commit(), do.pull(), *END), LARGE),
    Scenario("bad-parameters", "a footer does not match: do not install that", (
        do.trained(), do.pull(damaged=True), do.header_or_stop(), do.payload(), do.apply(), do.reply(damaged=True),
        do.header_or_stop(), do.answer_commit(), do.last_commit())),
    Scenario("wrong-digest", "parameters of another layout: do not train on them", (
        do.trained(), do.other_digest(of_join=False), do.must_stop("the parameters are another model's"))),
    Scenario("run-digest", "Join returns another digest than the worker's own: take that one", (
        do.trained(), do.other_digest(of_join=True), *END), FROZEN),
    Scenario("back-off", "Join fails five times: wait longer each time", (
        do.trained(), do.joins_broken(5, 1.3), *END)),
    Scenario("join-broken", "Join ends with CANCELLED, then INTERNAL, then UNAVAILABLE: again", (
        do.trained(), do.join_refused(CANCELLED), do.join_refused(INTERNAL), do.join_refused(TORN), *END)),
    Scenario("no-gemps", "Join ends with UNIMPLEMENTED without ErrorInfo: another server, stop", (
        do.join_refused(UNIMPLEMENTED), do.must_stop("the peer is no gemps server of this version"))),
    *(
        Scenario(f"final-{reason.lower().replace('_', '-')}", f"Join is refused with {reason}: exit with 2", (
            do.join_refused(refusal(reason)), do.must_stop("that is final")))
        for reason in ("CREDENTIALS", "LAYOUT_MISMATCH", "VERSION")
    ),
)
