"""Several servers (shards.proto)."""

from collections.abc import Callable
from dataclasses import replace

from gem_conformance.play import Play
from gem_conformance.scenarios import commits, losses, refusals, start
from gem_conformance.scenarios.scenario import SMALL, Scenario
from gem_conformance.task import Task, tensor
from gem_core.layout import Layout
from gem_core.wire_types import WireType

__all__ = ["SCENARIOS"]


def retry_info(play: Play) -> None:
    """Refuse with RetryInfo, twice."""
    play.initialised_by_others()
    play.commit()
    play.refuse(play.new_header(), "WAITING_ROOM", retry_after=1.0)
    commit = play.new_header()
    play.proceed(commit)
    play.receive_part(commit)
    play.refuse(commit, "STALLED", retry_after=1.0)
    play.commit()
    play.last_commit()


def torn_piece(play: Play) -> None:
    """Break a payload at the last shard."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    if play.shard.is_last:
        play.proceed(commit)
        play.receive_part(commit)
        play.tear(commit)
        commit = play.new_header()
    play.answer(commit)
    play.last_commit()


def dropped_reply(play: Play) -> None:
    """Lose the primary's verdict."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    play.receive_payload(commit)
    play.apply(commit)
    if play.shard.is_secondary:
        play.reply(commit)
    else:
        play.tear(commit)
    play.last_commit()


# Ranges that wait for proceed, of different lengths.
_LARGE = Task(
    Layout(
        [
            tensor("weight", (310, 330)),
            tensor("bias", (1001,)),
            tensor("steps", (), "buffer", "int64"),
            tensor("mean", (1001,), "buffer"),
        ]
    )
)
_INT4 = replace(_LARGE, delta_wire_types=(WireType.INT4_BLOCK,))


def _scenario(name: str, about: str, play: Callable[[Play], None], task: Task = _LARGE, *, shards: int = 2) -> Scenario:
    return Scenario(f"shards-{name}", about, play, task, may_not_speak=True, shards=shards)


SCENARIOS = (
    _scenario(
        "first", "three servers without parameters: to each its range, BUFFERs to the last", start.initialise, shards=3
    ),
    _scenario("small", "ranges that travel whole", commits.commit_small, SMALL),
    _scenario("eta", "three servers, the learning rate is the primary's", commits.changed_eta, shards=3),
    _scenario(
        "int4",
        "ranges are cut between blocks",
        commits.changed_eta,
        _INT4,
    ),
    _scenario("retry-info", "refused with RetryInfo: the identical pieces everywhere", retry_info),
    _scenario("no-retry", "refused without RetryInfo: stop", refusals.no_retry),
    _scenario("stale-base", "refused as stale: pull from all, drop the delta", refusals.stale_base),
    _scenario("expired", "the session has expired: join the primary, then the other, pull", refusals.expired_session),
    _scenario("torn-piece", "one piece breaks: only that again, with the same commit_id", torn_piece),
    _scenario("dropped-reply", "the primary's verdict is lost: not a second time", dropped_reply),
    _scenario("restart", "other incarnations of both servers", losses.restart),
)
