"""The cluster engine, and this worker's name there."""

import multiprocessing
import os
import socket
from collections.abc import Mapping

# Innermost first: Slurm may start torchrun. Kubernetes sets its variable in every container.
_SIGNS = {
    "ray": "RAY_JOB_ID",
    "spark": "PYTHON_WORKER_FACTORY_SECRET",
    "torchrun": "TORCHELASTIC_RUN_ID",
    "slurm": "SLURM_JOB_ID",
    "kubernetes": "KUBERNETES_SERVICE_HOST",
}


def engine(environment: Mapping[str, str] = os.environ) -> str:
    """The engine's name, or ""."""
    return next((name for name, variable in _SIGNS.items() if variable in environment), "")


def default_worker_name(environment: Mapping[str, str] = os.environ) -> str:
    """The engine's name for this process, stable over restarts; else host name and process id."""
    if multiprocessing.parent_process() is None:  # children would share it
        name = _restarted_name(environment)
        if name:
            return name
    return f"{socket.gethostname()}-{os.getpid()}"


def _restarted_name(environment: Mapping[str, str]) -> str:
    found = engine(environment)
    if found == "torchrun" and "RANK" in environment:
        run = environment["TORCHELASTIC_RUN_ID"]
        if run == "none":  # static rendezvous
            run = f"{environment.get('MASTER_ADDR', '')}-{environment.get('MASTER_PORT', '')}"
        return f"torchrun-{run}-{environment['RANK']}"
    # Batch scripts and terminals may start several.
    if found == "slurm" and "SLURM_STEP_ID" in environment and "SLURM_PTY_PORT" not in environment:
        in_array = "SLURM_ARRAY_TASK_ID" in environment
        job = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if in_array else ("SLURM_JOB_ID",)
        return "slurm-" + "-".join(environment[part] for part in (*job, "SLURM_STEP_ID", "SLURM_PROCID"))
    if found == "kubernetes" and "JOB_COMPLETION_INDEX" in environment:
        return socket.gethostname()  # of the Job, with the index
    return ""
