"""Optional parts: local steps, early proceed, the lane; and a feature that no worker has."""

from gemps.v1 import run_pb2

from gem_conformance.refusals import TORN
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import END, LARGE, Scenario

__all__ = ["SCENARIOS"]


def _local(name: str, about: str, settings: run_pb2.RunSettings, *needs: str) -> Scenario:
    settings.local_steps = 4
    steps = (do.trained(), do.run_settings(settings), do.last_commit())
    return Scenario(f"local-steps{name}", about, steps, is_optional=True, needs=("local-steps", *needs))


def _uses(feature: str, name: str, about: str, *steps: do.Step) -> Scenario:
    return Scenario(name, about, (do.trained(), do.commit(), *steps), LARGE, is_optional=True, uses=(feature,))


_Settings = run_pb2.RunSettings
_IS_USED = do.must_have_used("lane")

# fmt: off
SCENARIOS = (
    Scenario("unknown-feature", "the run needs a feature that this worker does not have: exit with 2", (
        do.trained(), do.must_stop("that is final")), needs=("of-a-later-version",)),
    _local("", "take four local steps, commit their sum", _Settings(local_rate=1)),
    _local("-mean", "commit the mean of four local steps", _Settings(normalise_local_steps=True, local_rate=1)),
    _local("-rate", "take local steps of a quarter", _Settings(normalise_local_steps=True, local_rate=0.25)),
    _local("-scaled", "scale_local_steps: no steps before the first commit",
        _Settings(normalise_local_steps=True, scale_local_steps=True, local_rate=1),
        "scaled-local-steps"),
    _uses("early-proceed", "early-proceed", "the next proceed comes with the reply: send without waiting",
        do.commit(), do.last_commit()),
    _uses("early-proceed", "early-proceed-torn", "the stream breaks behind an early proceed: on the next one wait",
        do.header(), do.tear(), do.header(), do.quiet(0.5), do.answer_commit(), do.last_commit()),
    _uses("lane", "lane", "commits over the lane", _IS_USED, do.commit(next_eta=0.02), do.last_commit()),
    _uses("lane", "lane-torn", "the lane breaks in a payload, then in a reply", _IS_USED,
        do.header(), do.proceed(), do.chunks(1), do.tear(),
        do.header(), do.payload(), do.apply(), do.reply(tear_after=2), *END),
    _uses("lane", "lane-end", "END has a refusal with RetryInfo: not before its delay", _IS_USED,
        do.header(), do.refuse("WAITING_ROOM", retry_after=1.0), *END),
    Scenario("lane-refused", "the lane refuses the worker: commit over gRPC", (
        do.trained(), do.hello_refused(TORN), *END), LARGE, is_optional=True, uses=("lane",)),
)
