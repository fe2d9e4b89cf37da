"""Commits without failures."""

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.formats import BUFFERS
from gem_conformance.scenarios.scenario import END, LARGE, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout

__all__ = ["SCENARIOS"]

# 3.2 MB: no chunk has it all.
_HUGE = Task(Layout([tensor("weight", (800, 1000)), tensor("bias", (3,))]))

# fmt: off
SCENARIOS = (
    Scenario("commit-small", "payloads of at most 64 KiB travel whole, whatever chunk_bytes says", (
        do.trained(), do.commit(), do.commit(), *END), is_basic=True, chunk_bytes=4099),
    Scenario("commit-large", "larger ones wait for proceed", (
        do.trained(), do.header(), do.quiet(0.2), do.answer_commit(), do.header(), do.quiet(1.0), do.answer_commit(),
        do.last_commit()), LARGE, is_basic=True),
    Scenario("commit-huge", "chunks have at most 2 MiB", (
        do.trained(), *END), _HUGE, is_basic=True, chunk_bytes=2 << 20),
    Scenario("slow-server", "the server reads and answers slowly: wait for it", (
        do.trained(), do.header(), do.quiet(0.2), do.slow_payload(0.2), do.apply(), do.reply(pause=0.1),
        do.last_commit()), LARGE),
    Scenario("next-eta", "each verdict has another learning rate, and so has Join", (
        do.trained(), do.commit(next_eta=0.02), do.commit(next_eta=0.3), do.header(), do.eta(0.01), do.tear(), *END)),
    Scenario("reply-of-others", "others commit before the reply: take its version, parameters and BUFFERs", (
        do.trained(), do.commit(others_behind=True), do.commit(others_behind=True), *END), BUFFERS),
)
