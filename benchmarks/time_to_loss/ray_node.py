"""A node of Ray: `python -m benchmarks.time_to_loss.ray_node HEAD PORT HOST FOLDER`; HEAD also drives Ray Train.

Nodes that start at once on one machine would choose the same names of sockets, so each has a folder.
"""

import socket
import subprocess
import sys
import time
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from benchmarks.time_to_loss.ddp_worker import train
from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.worlds import WORKERS


def work() -> None:
    """Train until killed."""
    context = WorkerContext.from_environment()
    train(context, lambda model: prepare_model(model, parallel_strategy_kwargs={"broadcast_buffers": False}))


def main() -> None:
    """Serve until killed."""
    head, port, host, folder = sys.argv[1:]
    if host == head:
        drive(head, port, folder)
    else:
        while not _serves(head, int(port)):
            time.sleep(0.5)
        _ray_start(host, folder, f"--address={head}:{port}", "--num-cpus=1", "--block")


def drive(head: str, port: str, folder: str) -> None:
    """Start the head, and train on all nodes."""
    more = ["--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats"]
    _ray_start(head, folder, "--head", f"--port={port}", *more)
    ray.init(address=f"{head}:{port}")
    while ray.cluster_resources().get("CPU", 0) < WORKERS:
        time.sleep(0.2)
    TorchTrainer(
        work,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=-1)),
    ).fit()


def _ray_start(host: str, folder: str, *arguments: str) -> None:
    where = [f"--node-ip-address={host}", f"--temp-dir={folder}/{host}", "--object-store-memory=100000000"]
    subprocess.run([Path(sys.executable).parent / "ray", "start", *where, *arguments], check=True)


def _serves(host: str, port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex((host, port)) == 0


if __name__ == "__main__":
    main()
