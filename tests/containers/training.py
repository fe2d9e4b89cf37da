"""Four workers in containers, training until the test has seen enough: then `Project.finish`."""

import subprocess

from .project import Project, host_name, logs, wait_until

# The convolutional network on large batches, because the logs have a line for each of its steps.
TRAINING: dict[str, object] = {
    "GEMPS_COMMITS": 100_000_000,
    "GEMPS_LIMITS_EXIT_LINGER": 0,
    "GEMPS_MODEL": "cnn",
    "GEMPS_BATCH_SIZE": 256,
    "GEMPS_MIN_WORKERS": 4,
    "GEMPS_CHECKPOINT_INTERVAL": 3,
    "GEMPS_LOG_INTERVAL": 0,
    "GEMPS_LOG_FORMAT": "json",
}


def all_train(project: Project, up: subprocess.Popen[str]) -> tuple[str, dict[str, str]]:
    """Wait until each of four workers has committed; returns the server's container, and the workers' with names."""
    wait_until(lambda: len(project.containers("worker")) == 4, "four containers", up)
    (server,) = project.containers("server")
    names = {one: host_name(one) for one in project.containers("worker")}
    wait_until(lambda: "training starts" in logs(server), "training has started", up)
    wait_until(lambda: min(applied(project, names)) >= 20, "all train", up)
    return server, names


def applied(project: Project, names: dict[str, str]) -> list[int]:
    commits = project.commits()
    return [commits.get(name, 0) for name in names.values()]


def goes_on(project: Project, names: dict[str, str], up: subprocess.Popen[str], when: str) -> None:
    """Every worker's commits rise again."""
    before = applied(project, names)
    wait_until(
        lambda: all(now > then + 5 for now, then in zip(applied(project, names), before, strict=True)),
        f"all workers train {when}",
        up,
    )
