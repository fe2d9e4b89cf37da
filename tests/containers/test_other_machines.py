"""Server and workers as two compose projects that share nothing but the server's published port, as on two machines."""

from collections.abc import Iterator

import pytest

from tests.figures import Figures

from .project import Project, docker, inspect, logs, wait_until

COMMITS = 3_000


@pytest.fixture
def other(project: Project) -> Iterator[Project]:
    made = Project(f"{project.name}-b")
    try:
        yield made
    finally:
        made.remove()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_workers_of_another_project_train_through_the_published_port(
    project: Project, other: Project, figures: Figures
) -> None:
    gateway = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    with project.up("server", GEMPS_ADDRESS=gateway, GEMPS_COMMITS=COMMITS, GEMPS_LIMITS_EXIT_LINGER=0) as serving:
        wait_until(lambda: project.containers("server") != [], "a container", serving)
        (server,) = project.containers("server")
        wait_until(lambda: "serving on" in logs(server), "the server serves", serving)
        (port,) = inspect(server)["NetworkSettings"]["Ports"]["50051/tcp"]
        assert port["HostIp"] == gateway
        address = f"{gateway}:{port['HostPort']}"
        with other.up("--no-deps", "--scale", "worker=2", "worker", GEMPS_SERVER=address, GEMPS_RUN="") as working:
            working.wait(600)
        serving.wait(120)
    assert other.containers("server") == []
    assert list(other.exit_codes().values()) == [0, 0]
    assert list(project.exit_codes().values()) == [0]
    assert f"finished: {COMMITS} commits" in logs(server)
    figures("2 workers of another project", f"trained through the port at {gateway}; all exit codes are 0")
