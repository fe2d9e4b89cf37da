"""First parameters and pulls."""

from gem_conformance.faults import Place
from gem_conformance.play import Play
from gem_conformance.scenarios.scenario import LARGE, Scenario
from gem_conformance.task import tensor
from gem_core.layout import Layout

__all__ = ["SCENARIOS"]


def initialise(play: Play) -> None:
    """Await an upload."""
    play.initialise()
    play.commit()
    play.last_commit()


def already_initialised(play: Play) -> None:
    """Another upload wins."""
    play.already_initialised()
    play.commit()
    play.last_commit()


def pull(play: Play) -> None:
    """Await a pull."""
    play.initialised_by_others()
    play.send(play.pull())
    play.last_commit()


def pull_resumed(play: Play) -> None:
    """Break a pull twice."""
    play.initialised_by_others()
    play.send(play.pull(), tear_after=3)
    play.central.others_commit()
    play.send(play.pull(), tear_after=1)
    play.central.others_commit()
    play.send(play.pull())
    play.commit()
    play.last_commit()


def bad_parameters(play: Play) -> None:
    """Damage parameters."""
    play.initialised_by_others()
    play.send(play.pull(), damaged=True)
    why = "the parameters never came undamaged"
    if (commit := play.header_unless_it_stops(why, Place.CHUNKS)) is None:
        return
    play.receive_payload(commit)
    play.apply(commit)
    play.reply(commit, damaged=True)
    if (commit := play.header_unless_it_stops(why, Place.CHUNKS)) is None:
        return
    play.answer(commit)
    play.last_commit()


def wrong_digest(play: Play) -> None:
    """Send a wrong digest."""
    play.initialised_by_others()
    play.digest = Layout([tensor("another", (64, 13)), tensor("bias", (5,))]).digest
    play.must_stop("the parameters are of another layout", Place.LAYOUTS)


SCENARIOS = (
    Scenario("initialise", "no parameters yet: upload, pull, commit", initialise, is_basic=True),
    Scenario("already-initialised", "another upload won: pull its parameters", already_initialised),
    Scenario("pull", "parameters are there: pull, commit", pull, is_basic=True),
    Scenario("pull-resumed", "a pull is torn in the middle, twice: resume it, or start over", pull_resumed, LARGE),
    Scenario("bad-parameters", "a footer does not match: do not install that", bad_parameters),
    Scenario("wrong-digest", "parameters of another layout: do not train on them", wrong_digest),
)
