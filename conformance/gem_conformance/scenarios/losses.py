"""Broken streams, sessions and servers."""

from gem_conformance.play import Play
from gem_conformance.scenarios.scenario import LARGE, Scenario

__all__ = ["SCENARIOS"]


def torn_commit(play: Play) -> None:
    """Break a payload."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    play.proceed(commit)
    play.receive_part(commit)
    play.receive_part(commit)
    play.tear(commit)
    play.commit()
    play.last_commit()


def dropped_reply(play: Play) -> None:
    """Lose a verdict."""
    play.initialised_by_others()
    play.commit()
    commit = play.apply_next()
    play.tear(commit)
    play.commit()
    play.last_commit()


def duplicate(play: Play) -> None:
    """Apply a commit late."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    play.receive_payload(commit)
    play.tear(commit, applied_late=True)
    play.commit()
    play.last_commit()


def torn_reply(play: Play) -> None:
    """Break a reply."""
    play.initialised_by_others()
    commit = play.apply_next()
    play.reply(commit, tear_after=3)
    play.commit()
    play.last_commit()


def restart(play: Play) -> None:
    """Restart the server."""
    play.initialised_by_others()
    play.commit()
    play.commit()
    play.new_header()
    play.restart(lost=1)
    play.commit()
    play.last_commit()


SCENARIOS = (
    Scenario("torn-commit", "the stream breaks in a payload: nothing was applied", torn_commit, LARGE),
    Scenario("dropped-reply", "applied, and the verdict is lost: not a second time", dropped_reply),
    Scenario("duplicate", "applied only after a Heartbeat said that it was not: do not drop it", duplicate, LARGE),
    Scenario("torn-reply", "the reply breaks in its parameters: bring the rest", torn_reply, LARGE),
    Scenario("restart", "another incarnation on the same port: join, pull, drop the delta", restart),
)
