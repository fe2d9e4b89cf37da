"""One worker is cut off from the network, another is paused: the others go on, and both resume."""

import time
from pathlib import Path

import pytest

from tests.figures import Figures

from .project import Project, docker, inspect, pause, wait_until
from .training import TRAINING, all_train, applied

SECONDS = 30.0  # the length of the partition and of the pause


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_others_go_on_while_one_is_cut_off_and_one_is_paused_and_both_resume(
    project: Project, figures: Figures, tmp_path: Path
) -> None:
    with project.up("--scale", "worker=4", **TRAINING) as up:
        _, names = all_train(project, up)
        workers = list(names)

        cut, paused, *others = workers
        (network,) = inspect(cut)["NetworkSettings"]["Networks"]
        docker("network", "disconnect", network, cut)
        pause(paused)
        counts = dict(zip(workers, applied(project, names), strict=True))

        def others_went_on() -> bool:
            now = dict(zip(workers, applied(project, names), strict=True))
            return all(now[one] > counts[one] + 5 for one in others)

        wait_until(others_went_on, "the others commit, and what the two had sent has arrived")
        before = dict(zip(workers, applied(project, names), strict=True))
        time.sleep(SECONDS)
        after = dict(zip(workers, applied(project, names), strict=True))
        docker("unpause", paused)
        docker("network", "connect", network, cut)
        back = time.monotonic()
        assert all(after[one] > before[one] + 50 for one in others)
        assert [after[one] - before[one] for one in (cut, paused)] == [0, 0]

        resumed: dict[str, float] = {}

        def both_resumed() -> bool:
            now = dict(zip(workers, applied(project, names), strict=True))
            for one in (cut, paused):
                if now[one] > after[one] + 5:
                    resumed.setdefault(one, time.monotonic() - back)
            return len(resumed) == 2

        wait_until(both_resumed, "both train again", up)
        project.finish()
        up.wait(900)

    assert up.returncode == 0
    assert set(project.exit_codes().values()) == {0}
    assert all(inspect(one)["RestartCount"] == 0 for one in workers)
    state, _ = project.state(tmp_path)
    assert sum(worker["commits"] for worker in state["workers"]) == state["commits"]
    figures(
        f"partition and pause of {SECONDS:.0f} s",
        "meanwhile the others applied "
        f"{[after[one] - before[one] for one in others]}; the cut-off worker trained again {resumed[cut]:.0f} s after "
        f"it was connected, the paused one {resumed[paused]:.0f} s after it went on",
    )
