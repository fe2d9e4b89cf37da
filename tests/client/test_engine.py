"""What started a worker, and the name it keeps over restarts there."""

import multiprocessing
import os
import socket

import pytest
from gem_worker.client.engine import default_worker_name, engine

SLURM = {"SLURM_JOB_ID": "71", "SLURM_PROCID": "0"}
STEP = {**SLURM, "SLURM_STEP_ID": "1", "SLURM_PROCID": "3"}
ARRAY = {**SLURM, "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "5"}
RUN = {"TORCHELASTIC_RUN_ID": "digits", "RANK": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
# Else one that lasts as long as the process.
NAMES = {"": f"{socket.gethostname()}-{os.getpid()}", "of the pod": socket.gethostname()}


@pytest.mark.parametrize(
    ("environment", "started_by", "name"),
    [
        ({"RANK": "1", "HOME": "/root"}, "", ""),
        (STEP, "slurm", "slurm-71-1-3"),
        # Batch scripts and terminals may start several workers, all of them with process 0.
        (SLURM, "slurm", ""),
        (ARRAY, "slurm", ""),
        ({**STEP, "SLURM_PTY_PORT": "40001"}, "slurm", ""),
        ({**ARRAY, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, "slurm", "slurm-70-5-0-1"),
        (RUN, "torchrun", "torchrun-digits-2"),
        ({**RUN, **STEP}, "torchrun", "torchrun-digits-2"),
        ({**RUN, "TORCHELASTIC_RUN_ID": "none"}, "torchrun", "torchrun-n1-29500-2"),
        (POD, "kubernetes", ""),
        ({**POD, "JOB_COMPLETION_INDEX": "4"}, "kubernetes", "of the pod"),
        ({**POD, "RAY_JOB_ID": "01000000"}, "ray", ""),
        ({**POD, "PYTHON_WORKER_FACTORY_SECRET": "0"}, "spark", ""),
    ],
)
def test_engine_and_name_come_from_the_environment(environment: dict[str, str], started_by: str, name: str) -> None:
    assert engine(environment) == started_by
    assert default_worker_name(environment) == NAMES.get(name, name)


def test_spawned_processes_of_one_task_do_not_share_a_name() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        names = pool.map(default_worker_name, [STEP, STEP], chunksize=1)
    assert all(name.startswith(f"{socket.gethostname()}-") for name in names)
