"""Scenarios about commits without failures: their size, slow servers, learning rates and the replies."""

from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.formats import BUFFERS
from gem_conformance.scenarios.scenario import END, LARGE, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout

__all__ = ["SCENARIOS"]

# 3.2 MB, which is more than one chunk may have.
_HUGE = Task(Layout([tensor("weight", (800, 1000)), tensor("bias", (3,))]))

# fmt: off
SCENARIOS = (
    Scenario("commit-small", "a payload of at most 64 KiB may come in one message, whatever chunk_bytes is", (
        do.others_trained(), do.commit(), do.commit(), *END), is_basic=True, chunk_bytes=4099),
    Scenario("commit-large", "a larger payload must wait for proceed", (
        do.others_trained(), do.await_header(), do.expect_silence(0.2), do.answer_commit(), do.await_header(),
        do.expect_silence(1.0), do.answer_commit(), do.last_commit()), LARGE, is_basic=True),
    Scenario("commit-huge", "a chunk has at most 2 MiB", (
        do.others_trained(), *END), _HUGE, is_basic=True, chunk_bytes=2 << 20),
    Scenario("slow-server", "the server reads and answers slowly: the worker waits for it", (
        do.others_trained(), do.await_header(), do.expect_silence(0.2), do.read_payload_slowly(0.2), do.apply(),
        do.send_reply(pause=0.1), do.last_commit()), LARGE),
    Scenario("next-eta", "each verdict and Join's answer bring a new learning rate: the worker uses it", (
        do.others_trained(), do.commit(next_eta=0.02), do.commit(next_eta=0.3), do.await_header(),
        do.change_eta(0.01), do.break_stream(), *END)),
    Scenario("reply-of-others", "others commit before the reply: the worker takes its version, parameters and BUFFERs",
        (do.others_trained(), do.commit(others_after=True), do.commit(others_after=True), *END), BUFFERS),
)
