"""A model on four servers of one machine, within a limit of memory: `python -m benchmarks.large_model`; needs root.

One staging buffer, deltas in int4, parameters in bfloat16. Two workers, each a process that computes nothing: its
parameters and its delta are mapped files, which the kernel can write back; the servers' arrays are not. They train,
with checkpoints; then the servers start again from their data directories, and the workers go on.

A worker that pulls while another commits would take 4 bytes a parameter more; here all pull first.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from gem_worker.client import Client, RunFinishedError, RunState

from benchmarks.served import LOOPBACK, Place, serve_shards
from gem_core import ElementType, Layout, PayloadFormat, TensorKind, TensorSpec, WireType
from gem_core.wire_kernels import encode

SHARDS, WORKERS, COMMITS = 4, 2, 4
TENSORS = 20
PIECE = 1 << 20  # elements of the delta, which repeats them
DELTA_WIRE, PARAMETER_WIRE = WireType.INT4_BLOCK, WireType.BFLOAT16
FLAGS = (
    "--set=limits.staging_buffers=1",
    "--durability=interval",
    "--checkpoint-interval=0",
    "--checkpoint-commits=2",
    "--resume",
    "--insecure",
)
VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def main() -> None:
    """Run, or be a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=1000, help="parameters")
    parser.add_argument("--gigabytes", type=float, default=32, help="limit of a control group for all processes")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for 20 bytes a parameter")
    parser.add_argument("--work", nargs=2, metavar=("ADDRESS", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work, options.millions, options.folder)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemps-large-", dir=options.folder)))
        group = stack.enter_context(limited_memory(int(options.gigabytes * 1e9)))
        for number in (1, 2):
            print(f"start {number}: {options.millions} M parameters, {number * COMMITS} commits", flush=True)
            run(options.millions, folder, group, number * COMMITS)


def run(millions: int, folder: Path, group: Path, commits: int) -> None:
    """Start servers and workers; print what they do, and the most memory."""
    within = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    flags = (*FLAGS, f"--min-workers={WORKERS}", f"--commits={commits}", f"--data-dir={folder}/state-{{shard}}")
    began = time.monotonic()
    with serve_shards(folder, [Place(LOOPBACK.host, within)] * SHARDS, *flags) as servers, ExitStack() as stack:
        show(began, "the servers are ready")
        workers = []
        for number in range(WORKERS):
            command = [*within, sys.executable, "-m", "benchmarks.large_model", f"--millions={millions}"]
            command += [f"--folder={folder}", "--work", servers[0].address, f"worker-{number}"]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            workers.append(stack.enter_context(worker))
            stack.callback(worker.kill)  # the control group must be empty at the end
        processes = {"servers": [one.process.pid for one in servers], "workers": [one.pid for one in workers]}
        with most_anonymous(processes):
            for worker in workers:
                line = next(iter(worker.stdout or ()), "")
                show(began, line.strip() or sys.exit("a worker failed"))
            for worker in workers:
                print("go", file=worker.stdin, flush=True)
            followers = [threading.Thread(target=follow, args=(began, worker)) for worker in workers]
            for follower in followers:
                follower.start()
            for follower in followers:
                follower.join()
        if any(worker.wait() for worker in workers):
            sys.exit("a worker failed")
    show(began, "the servers have ended")


def work(address: str, name: str, millions: int, folder: Path) -> None:
    """Join, pull, wait for a line, and commit until the run is finished."""
    elements = millions * 1_000_000 // TENSORS
    tensor = TensorSpec("", (elements,), ElementType.FLOAT32, TensorKind.PARAMETER)
    layout = Layout([replace(tensor, name=f"weight-{index}") for index in range(TENSORS)])
    parameters = mapped(folder / f"{name}-parameters", layout, PARAMETER_WIRE)
    delta = mapped(folder / f"{name}-delta", layout, DELTA_WIRE)
    random = np.random.default_rng(0)
    piece = np.frombuffer(encode(DELTA_WIRE, (1e-3 * random.standard_normal(PIECE)).astype(np.float32)), np.uint8)
    for start in range(0, len(delta), len(piece)):
        delta[start : start + len(piece)] = memoryview(piece[: len(delta) - start])
    with Client(
        address,
        worker_name=name,
        layout=layout,
        delta_wire_types=(DELTA_WIRE,),
        parameter_wire_types=(PARAMETER_WIRE,),
    ) as client:
        if not client.join().has_parameters:
            first = np.memmap(folder / f"{name}-first", np.float32, "w+", shape=(layout.parameter_count,))
            first.reshape(TENSORS, -1)[:] = random.standard_normal(elements)
            client.initialize(memoryview(first).cast("B"))
            del first
        version = client.pull(parameters)
        print(f"{name} pulled clock {version.clock}, SHA-256 {sha256(parameters)}", flush=True)
        sys.stdin.readline()
        with suppress(RunFinishedError):
            while client.run_state is not RunState.FINISHED:
                outcome = client.commit(delta, parameters, samples=1)
                print(f"{name}: clock {outcome.version.clock}, SHA-256 {sha256(parameters)}", flush=True)
        client.leave("finished")


def mapped(path: Path, layout: Layout, wire_type: WireType) -> memoryview:
    """A file in memory, for a payload."""
    return memoryview(np.memmap(path, np.uint8, "w+", shape=(PayloadFormat(layout, wire_type).byte_count,)))


def sha256(data: memoryview) -> str:
    """The first 16 digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def follow(began: float, worker: "subprocess.Popen[str]") -> None:
    """Print its lines until it ends."""
    for line in worker.stdout or ():
        show(began, line.strip())


def show(began: float, what: str) -> None:
    """Print it, with the time."""
    print(f"{time.monotonic() - began:7.1f} s  {what}", flush=True)


@contextmanager
def most_anonymous(processes: dict[str, list[int]]) -> Iterator[None]:
    """Print the most memory that each kind of process had to itself together, and all of them."""
    most = dict.fromkeys([*processes, "all"], 0)
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.1):
            now = {kind: sum(map(anonymous_bytes, pids)) for kind, pids in processes.items()}
            for kind, size in {**now, "all": sum(now.values())}.items():
                most[kind] = max(most[kind], size)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        over.set()
        sampler.join()
        print("anonymous memory at most: " + ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in most.items()))


def anonymous_bytes(pid: int) -> int:
    """RssAnon and RssShmem of a process; 0 when it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        return 1024 * sum(
            int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShm"))
        )
    return 0


@contextmanager
def limited_memory(limit: int) -> Iterator[Path]:
    """Yield a control group that may have `limit` bytes, cached files included; print the most that it had."""
    if VERSION_1.exists():
        root, name, peak = VERSION_1, "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    else:
        root, name, peak = VERSION_2, "memory.max", "memory.peak"
        (root / "cgroup.subtree_control").write_text("+memory")
    group = root / f"gemps-large-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(f"{limit}")
        yield group
        print(f"limit {limit / 1e9:.2f} GB; with cached files at most {int((group / peak).read_text()) / 1e9:.2f} GB")
    finally:
        group.rmdir()


if __name__ == "__main__":
    main()
