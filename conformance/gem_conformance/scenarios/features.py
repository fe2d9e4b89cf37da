"""Scenarios about optional parts (local steps, early proceed, the lane), and about a feature that no worker has."""

from gemps.v1 import run_pb2

from gem_conformance.refusals import BROKEN
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import END, LARGE, Scenario

__all__ = ["SCENARIOS"]


def _local(name: str, about: str, settings: run_pb2.RunSettings, *needs: str) -> Scenario:
    settings.local_steps = 4
    steps = (do.others_trained(), do.change_settings(settings), do.last_commit())
    return Scenario(f"local-steps{name}", about, steps, is_optional=True, needs=("local-steps", *needs))


def _uses(feature: str, name: str, about: str, *steps: do.Step) -> Scenario:
    return Scenario(name, about, (do.others_trained(), do.commit(), *steps), LARGE, is_optional=True, uses=(feature,))


_Settings = run_pb2.RunSettings
_IS_USED = do.require_use("lane")

# fmt: off
SCENARIOS = (
    Scenario("unknown-feature", "the run needs a feature that this worker does not have: it exits with 2", (
        do.others_trained(), do.expect_error_exit("the refusal is final")), needs=("of-a-later-version",)),
    _local("", "the worker takes four local steps and commits the sum of their deltas", _Settings(local_rate=1)),
    _local("-mean", "the worker commits the mean of four local steps",
        _Settings(normalise_local_steps=True, local_rate=1)),
    _local("-rate", "the worker takes local steps with a quarter of the learning rate",
        _Settings(normalise_local_steps=True, local_rate=0.25)),
    _local("-scaled", "with scale_local_steps the worker's local steps have length 0 before its first commit",
        _Settings(normalise_local_steps=True, scale_local_steps=True, local_rate=1), "scaled-local-steps"),
    _uses("early-proceed", "early-proceed", "a reply brings the next proceed: the worker sends without waiting", *END),
    _uses("early-proceed", "early-proceed-torn", "a stream with an early proceed breaks: the worker waits on the next",
        do.await_header(), do.break_stream(), do.await_header(), do.expect_silence(0.5), do.answer_commit(),
        do.last_commit()),
    _uses("lane", "lane", "the worker commits over the lane", _IS_USED, do.commit(next_eta=0.02), do.last_commit()),
    _uses("lane", "lane-torn", "the lane breaks within a payload, then within a reply", _IS_USED,
        do.await_header(), do.send_proceed(), do.await_chunks(1), do.break_stream(), do.apply_commit(),
        do.send_reply(break_after=2), *END),
    _uses("lane", "lane-end", "the lane ends with a refusal that has RetryInfo: the worker waits for its delay",
        _IS_USED, do.await_header(), do.refuse("WAITING_ROOM", retry_after=1.0), *END),
    Scenario("lane-refused", "the lane refuses the worker: it commits over gRPC", (
        do.others_trained(), do.refuse_hello(BROKEN), *END), LARGE, is_optional=True, uses=("lane",)),
)
