"""Round trips with one server that is started with flags of its own; for `durability.py`.

Workers are client processes without PyTorch: each commits a delta of all parameters and gets all parameters back, and
computes nothing. What gemps can do beside others is `bench.py`'s to measure.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
from gem_worker.client import Client

from benchmarks.served import serve
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec


def commit_for(seconds: float, address: str, name: str, parameters: int, start: Barrier) -> list[float]:
    """Commit for so many seconds as one worker; returns the time of each round trip, in seconds."""
    layout = Layout([TensorSpec("weight", (parameters,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    held = memoryview(bytearray(4 * parameters))
    delta = memoryview(np.random.default_rng(0).normal(scale=1e-6, size=parameters).astype(np.float32).tobytes())
    took: list[float] = []
    with Client(address, worker_name=name, layout=layout) as client:
        if not client.join().has_parameters:
            client.initialize(held)
        client.pull(held)
        client.commit(delta, held)  # opens the stream
        start.wait()
        end = time.perf_counter() + seconds
        while (before := time.perf_counter()) < end:
            client.commit(delta, held)
            took.append(time.perf_counter() - before)
        client.leave("done")
    return took


def measure(
    rule: str,
    parameters: int,
    workers: int,
    seconds: float,
    *,
    credentials: Path | None = None,
    flags: Mapping[str, object] | None = None,
    files: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> list[float]:
    """Start a server and the workers; returns all round trips.

    `credentials`: with TLS and tokens from there. `flags`: more of the server's, with their values. `files`: those
    whose value names something in a temporary folder, which is made in `directory`.
    """
    with tempfile.TemporaryDirectory(prefix="gemps-bench-", dir=directory) as folder:
        settings = {"--rule": rule, "--min-workers": workers, **(flags or {})}
        settings |= {flag: Path(folder) / name for flag, name in (files or {}).items()}
        if credentials is not None:
            settings["--credentials"] = credentials / "server"
            os.environ["GEMPS_CLIENT_CREDENTIALS"] = str(credentials / "worker")  # which the workers inherit
        else:
            os.environ.pop("GEMPS_CLIENT_CREDENTIALS", None)
        arguments = [f"{flag}={value}" for flag, value in settings.items()]
        spawn = multiprocessing.get_context("spawn")
        with serve(Path(folder), *arguments) as served, spawn.Manager() as manager, spawn.Pool(workers) as pool:
            start = manager.Barrier(workers)
            jobs = [(seconds, served.address, f"worker-{index}", parameters, start) for index in range(workers)]
            return [one for took in pool.starmap(commit_for, jobs, chunksize=1) for one in took]
