"""Commits without failures."""

import time

from gemps.v1 import run_pb2

from gem_conformance.faults import Place
from gem_conformance.play import Play
from gem_conformance.scenarios.scenario import LARGE, Scenario

__all__ = ["SCENARIOS"]


def commit_small(play: Play) -> None:
    """Small payloads."""
    play.initialised_by_others()
    for _ in range(4):
        play.commit()
    play.last_commit()


def commit_large(play: Play) -> None:
    """Large payloads."""
    play.initialised_by_others()
    for _ in range(3):
        commit = play.new_header()
        play.quiet(commit, 0.2)
        play.answer(commit)
    play.last_commit()


def proceed_withheld(play: Play) -> None:
    """Withhold proceed."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    play.quiet(commit, 2 * play.limits.quiet)
    play.answer(commit)
    play.last_commit()


def slow_reader(play: Play) -> None:
    """Slow reads and replies."""
    play.initialised_by_others()
    commit = play.new_header()
    play.quiet(commit, 0.2)
    commit.call.stop_reading()
    play.proceed(commit)
    for _ in range(3):
        time.sleep(play.limits.quiet / 2)
        commit.call.read_one()
        play.receive_part(commit)
    commit.call.go_on_reading()
    play.receive_rest(commit)
    play.apply(commit)
    play.reply(commit, pause=0.1)
    play.last_commit()


def changed_eta(play: Play) -> None:
    """Change the learning rate."""
    play.initialised_by_others()
    for eta in (0.02, 0.3, 0.01):
        play.commit(next_eta=eta)
    play.last_commit()


def local_steps(play: Play) -> None:
    """Require local steps."""
    play.central.local_steps = 4
    play.initialised_by_others()
    commit = play.header_unless_it_stops("the run asks for local steps", Place.COMMIT)
    if commit is not None:
        play.answer(commit)
        play.last_commit()


def normalised_local_steps(play: Play) -> None:
    """Require the mean of local steps."""
    play.central.normalise_local_steps = True
    local_steps(play)


def shorter_local_steps(play: Play) -> None:
    """Require the mean of gradients along shorter steps."""
    play.central.local_rate = 0.25
    normalised_local_steps(play)


def scaled_local_steps(play: Play) -> None:
    """The first commit has no steps in between."""
    play.central.local_steps, play.central.normalise_local_steps = 4, True
    play.central.scale_local_steps = True
    play.initialised_by_others()
    commit = play.header_unless_it_stops("the run asks for local steps", Place.COMMIT)
    if commit is not None:
        play.central.run_state = run_pb2.RUN_STATE_FINISHED
        play.answer(commit)
        play.finish()


SCENARIOS = (
    Scenario(
        "commit-small",
        "payloads of at most 64 KiB travel whole, whatever chunk_bytes says",
        commit_small,
        is_basic=True,
        chunk_bytes=1001,
    ),
    Scenario("commit-large", "larger ones wait for proceed", commit_large, LARGE),
    Scenario("proceed-withheld", "no proceed for a while: wait for it", proceed_withheld, LARGE),
    Scenario("slow-reader", "the server reads and answers slowly: wait for it", slow_reader, LARGE),
    Scenario("changed-eta", "each verdict has another learning rate", changed_eta),
    Scenario(
        "local-steps",
        "local steps are asked for: take them, or stop",
        local_steps,
        may_not_speak=True,
    ),
    Scenario(
        "local-steps-mean",
        "normalise_local_steps, too: commit their mean, or stop",
        normalised_local_steps,
        may_not_speak=True,
    ),
    Scenario(
        "local-steps-rate",
        "local_rate is 0.25: take steps of that size, or stop",
        shorter_local_steps,
        may_not_speak=True,
    ),
    Scenario(
        "local-steps-scaled",
        "scale_local_steps: before the first commit take no steps, or stop",
        scaled_local_steps,
        may_not_speak=True,
    ),
)
