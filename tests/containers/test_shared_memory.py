"""Server and workers in containers of their own share memory by the volume that carries the socket."""

import pytest

from .project import Project, logs


@pytest.mark.timeout(900)
def test_workers_share_memory_with_the_server_across_containers(project: Project) -> None:
    commits = {"GEMPS_COMMITS": 200, "GEMPS_MIN_WORKERS": 2, "GEMPS_MODEL": "cnn", "GEMPS_EXIT_LINGER": 1}
    with project.up("--build", "--scale", "worker=2", **commits) as up:
        up.wait(600)
    assert up.returncode == 0
    assert set(project.exit_codes().values()) == {0}
    (server,) = project.containers("server")
    workers = project.containers("worker")
    assert logs(server).count("shares memory") == 2
    assert not any("over the network" in logs(one) for one in workers)
    assert "stopped at clock 201" in logs(server)
