"""End of a run."""

from gemps.v1 import run_pb2

from gem_conformance.play import Play
from gem_conformance.scenarios.scenario import Scenario

__all__ = ["SCENARIOS"]


def finished(play: Play) -> None:
    """The verdict says finished."""
    play.initialised_by_others()
    play.commit()
    play.last_commit()


def finished_refused(play: Play) -> None:
    """Refuse the last commit."""
    play.initialised_by_others()
    play.commit()
    commit = play.new_header()
    play.central.run_state = run_pb2.RUN_STATE_FINISHED
    play.refuse(commit, "RUN_FINISHED")
    play.finish(was_refused=True)


def finished_before(play: Play) -> None:
    """Finish before Join."""
    play.initialised_by_others()
    play.central.run_state = run_pb2.RUN_STATE_FINISHED
    play.join()
    play.finish()


SCENARIOS = (
    Scenario("finished", "the verdict says FINISHED: leave, exit 0", finished, is_basic=True),
    Scenario("finished-refused", "a commit is refused with RUN_FINISHED: leave, exit 0", finished_refused),
    Scenario("finished-before", "Join says FINISHED: leave, exit 0", finished_before),
)
