"""Scenarios about the end of a run, and about the end of a worker by SIGTERM."""

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, Scenario

__all__ = ["SCENARIOS"]

# fmt: off
SCENARIOS = (
    Scenario("finished", "a verdict says FINISHED: the worker leaves and exits with 0", (
        *BEGIN, do.last_commit()), is_basic=True),
    Scenario("finished-before", "Join's answer says FINISHED: the worker leaves and exits with 0", (
        do.others_trained(), do.finish_run(), do.expect_leave()), is_basic=True),
    Scenario("finished-refused", "a commit is refused with RUN_FINISHED: the worker leaves and exits with 0", (
        *BEGIN, do.await_header(), do.finish_run(), do.refuse("RUN_FINISHED"), do.expect_leave())),
    Scenario("finished-rejoin", "a stream breaks, Join's answer says FINISHED: the worker leaves and exits with 0", (
        *BEGIN, do.await_header(), do.finish_run(), do.break_stream(), do.expect_leave())),
    Scenario("interrupted", 'after SIGTERM the worker leaves with the reason "interrupted", and ends', (
        *BEGIN, do.interrupt()), needs_process=True),
)
