"""Refusals."""

from gem_conformance.faults import Place
from gem_conformance.play import Play
from gem_conformance.scenarios.scenario import LARGE, Scenario
from gem_conformance.talk import refusal

__all__ = ["SCENARIOS"]


def retry_info(play: Play) -> None:
    """Refuse with RetryInfo."""
    play.initialised_by_others()
    play.join(refusal("TOO_MANY", 1.0))
    play.commit()
    play.refuse(play.new_header(), "WAITING_ROOM", retry_after=1.5)
    commit = play.new_header()
    play.proceed(commit)
    play.receive_part(commit)
    play.receive_part(commit)
    play.refuse(commit, "STALLED", retry_after=2.0)
    play.commit()
    play.last_commit()


def no_retry(play: Play) -> None:
    """Refuse without RetryInfo."""
    play.initialised_by_others()
    play.commit()
    play.refuse(play.new_header(), "SIZE_MISMATCH")
    play.must_stop("the refusal says that it is the worker's own fault", Place.REFUSALS)


def stale_base(play: Play) -> None:
    """Refuse as stale."""
    play.initialised_by_others()
    play.commit()
    play.refuse(play.new_header(), "STALE_BASE")
    play.commit()
    play.last_commit()


def sequence_gap(play: Play) -> None:
    """Expect another sequence."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    play.session.last_applied += 3
    play.session.stored = None
    play.refuse(commit, "SEQUENCE_GAP")
    play.commit()
    play.last_commit()


def expired_session(play: Play) -> None:
    """Expire the session."""
    play.initialised_by_others()
    play.commit()
    play.refuse(play.new_header(), "EXPIRED_SESSION")
    play.commit()
    play.last_commit()


def draining(play: Play) -> None:
    """Drain and restart."""
    play.initialised_by_others()
    play.commit()
    play.refuse(play.new_header(), "DRAINING", retry_after=1.0)
    play.refuse(play.new_header(), "DRAINING", retry_after=1.0)
    play.restart()
    play.commit()
    play.last_commit()


SCENARIOS = (
    Scenario("retry-info", "refused with RetryInfo: not before its delay, the identical bytes", retry_info, LARGE),
    Scenario("no-retry", "refused without RetryInfo: do not repeat it, stop", no_retry),
    Scenario("stale-base", "refused as stale: pull, drop the delta", stale_base),
    Scenario("sequence-gap", "refused as a gap: Join returns the sequence", sequence_gap),
    Scenario("expired-session", "the session has expired: join, pull, drop the delta", expired_session),
    Scenario("draining", "the server shuts down, another one comes", draining),
)
