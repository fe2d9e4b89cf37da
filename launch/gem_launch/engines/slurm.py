"""Job scripts for Slurm."""

import shlex
import subprocess
from collections.abc import Sequence
from importlib.resources import files


def job_script(
    servers: Sequence[Sequence[str]], worker: Sequence[str], workers: int, options: Sequence[str], run_name: str
) -> str:
    """Job of a server, to which it adds `--bind`, further shards (`--primary`), and workers; `options` are sbatch's.

    `run_name`: of server and workers; empty: the job's id.
    """
    server, *others = servers
    run = [_array("server", server), *(_array(f"shard_{index}", one) for index, one in enumerate(others, 1))]
    run += [_array("worker", worker), f"GEMPS_WORKERS={workers}", f"shards={len(servers)}"]
    run += [f"run={shlex.quote(run_name)}"]
    return _script([f"--ntasks={workers + len(servers)}", *options], run, "slurm_job.sh")


def array_script(address: str, worker: Sequence[str], workers: int, options: Sequence[str]) -> str:
    """Job array of `workers` for a running server."""
    run = [_array("worker", worker), f"export GEMPS_SERVER={shlex.quote(address)}"]
    return _script([f"--array=1-{workers}", *options], run, "slurm_array.sh")


def submit(script: str) -> str:
    """Job's id; raise FileNotFoundError or, with sbatch's message, RuntimeError."""
    done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True)  # noqa: S607
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"sbatch exited with {done.returncode}")
    return done.stdout.strip()


def _array(name: str, command: Sequence[str]) -> str:
    return f"{name}=({shlex.join(command)})"


def _script(options: Sequence[str], run: Sequence[str], template: str) -> str:
    header = ["--job-name=gemps", "--requeue", "--open-mode=append", "--signal=B:USR1@60", *options]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in header), "", *run, ""]
    texts = [files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("slurm.sh", template)]
    return "\n".join([*lines, *texts])
