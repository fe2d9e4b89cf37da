"""The end of a run, and of a worker."""

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, Scenario

__all__ = ["SCENARIOS"]

# fmt: off
SCENARIOS = (
    Scenario("finished", "the verdict says FINISHED: leave, exit 0", (*BEGIN, do.last_commit()), is_basic=True),
    Scenario("finished-before", "Join says FINISHED: leave, exit 0", (
        do.trained(), do.finished_already(), do.finish()), is_basic=True),
    Scenario("finished-refused", "a commit is refused with RUN_FINISHED: leave, exit 0", (
        *BEGIN, do.header(), do.finished_already(), do.refuse("RUN_FINISHED"), do.finish())),
    Scenario("finished-rejoin", "the stream breaks, and Join says FINISHED: leave, exit 0", (
        *BEGIN, do.header(), do.finished_already(), do.tear(), do.finish())),
    Scenario("interrupted", 'SIGTERM: leave as "interrupted", and end', (*BEGIN, do.interrupt()), needs_process=True),
)
