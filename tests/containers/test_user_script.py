"""A script of the user's own, mounted into the worker service, trains."""

import re

import pytest

from tests.figures import Figures

from .project import Project, logs, wait_until

STEPS = 300


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_example_script_trains_as_two_workers(project: Project, figures: Figures) -> None:
    with project.up(
        "--scale",
        "worker=2",
        files=("docker-compose.yml", "docker/compose.script.yml"),
        SCRIPT_DIR="examples",
        SCRIPT="custom_training.py",
        GEMPS_STEPS=STEPS,
        GEMPS_MIN_WORKERS=2,
        GEMPS_LIMITS_EXIT_LINGER=0,
    ) as up:
        wait_until(lambda: len(project.containers("worker")) == 2, "two containers", up)
        up.wait(900)
    assert up.returncode == 0
    assert set(project.exit_codes().values()) == {0}
    said = [
        re.search(r"(\d+) steps, accuracy on held-out digits (\S+)", logs(one)) for one in project.containers("worker")
    ]
    assert [found and int(found[1]) for found in said] == [STEPS, STEPS]
    accuracies = [float(found[2]) for found in said if found]
    assert min(accuracies) >= 0.9
    figures("a mounted script as 2 workers", f"accuracy {accuracies}")
