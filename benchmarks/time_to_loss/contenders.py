"""Who trains, each as its own documentation says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.environments import PEERS, has_peer, interpreter
from benchmarks.time_to_loss.worlds import WORKERS, Host, World

SERVER_PORT, RENDEZVOUS_PORT = 50051, 29400
RAY_PORT, LIGHTHOUSE_PORT = "6379", "29510"
GEMPS = f"-m gem_cli serve --insecure --min-workers={WORKERS}".split()


@dataclass(frozen=True)
class Contender:
    """server: Python's arguments on the server's host, given the rate and the run's folder.

    worker: those on a worker's host, given the world, the server's host, its own and the run's folder.
    rates: to search; empty: it has no rate. package: what it needs of the peers' environment.
    """

    name: str
    rates: Sequence[float]
    server: Callable[[Host, float, Path], list[str]]
    worker: Callable[[World, Host, Host, Path], list[str]]
    package: str = ""

    @property
    def interpreter(self) -> Path:
        """Of its environment."""
        return interpreter("peers" if self.package else "gemps")

    @property
    def is_missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.package) and not has_peer(self.package)


def _gemps(name: str, rates: Sequence[float] = (), flags: Sequence[str] = (), worker: str = "") -> Contender:
    """flags: of the server; {rate} and {folder} are the run's."""

    def server(host: Host, rate: float, folder: Path) -> list[str]:
        given = (flag.format(rate=rate, folder=folder) for flag in flags)
        return [*GEMPS, f"--bind={host.address}:{SERVER_PORT}", *given]

    return Contender(name, rates, server, lambda *_: ["-m", "benchmarks.time_to_loss.gemps_worker", *worker.split()])


def _ddp(name: str, rates: Sequence[float], worker: str = "") -> Contender:
    def rendezvous(host: Host, rate: float, folder: Path) -> list[str]:
        return ["-m", "benchmarks.time_to_loss.rendezvous", host.address, f"{RENDEZVOUS_PORT}"]

    def agent(world: World, server: Host, host: Host, folder: Path) -> list[str]:
        nodes = f"{_least_workers(world)}:{WORKERS}"
        return [
            *f"-m torch.distributed.run --nnodes={nodes} --nproc-per-node=1 --max-restarts=1000".split(),
            *f"--rdzv-backend=c10d --rdzv-endpoint={server.address}:{RENDEZVOUS_PORT} --rdzv-id=1".split(),
            *f"--rdzv-conf=is_host=0,last_call_timeout=5 --local-addr={host.address}".split(),
            *f"-m benchmarks.time_to_loss.ddp_worker {worker}".split(),
        ]

    return Contender(name, rates, rendezvous, agent)


def _least_workers(world: World) -> int:
    return WORKERS - 1 if world.failures else WORKERS


# Found with 4 workers in turn in one process; the search decides.
GRADIENT_RATES = (0.1, 0.2)
ADAM_RATES = (0.002, 0.004)
PLAIN_DDP = _ddp("ddp", ADAM_RATES)
# For goodput, where the server fails as well.
DURABLE = _gemps("gemps-durable", flags=("--data-dir={folder}/data", "--durability=commit", "--resume"))
TORCH_RPC = Contender(
    "torch-rpc",
    ADAM_RATES,
    lambda *_: ["-m", "benchmarks.time_to_loss.rpc_process", "server"],
    lambda world, server, host, folder: ["-m", "benchmarks.time_to_loss.rpc_process", host.namespace],
)
FLOWER = Contender(
    "flower-fedavg-32",
    ADAM_RATES,
    lambda *_: ["-m", "benchmarks.time_to_loss.flower_server", f"{WORKERS - 1}"],
    lambda *_: ["-m", "benchmarks.time_to_loss.flower_worker", "32"],
    package="flwr",
)
RAY_TRAIN = Contender(
    "ray-train",
    ADAM_RATES,
    lambda host, rate, folder: [
        *("-m", "benchmarks.time_to_loss.ray_node", host.address, RAY_PORT, host.address, str(folder)),
    ],
    lambda world, server, host, folder: [
        *("-m", "benchmarks.time_to_loss.ray_node", server.address, RAY_PORT, host.address, str(folder)),
    ],
    package="ray",
)
TORCHFT = Contender(
    "torchft-ddp",
    ADAM_RATES,
    lambda host, rate, folder: [
        *(str(PEERS / "bin" / "torchft_lighthouse"), f"--bind={host.address}:{LIGHTHOUSE_PORT}"),
        *("--min_replicas=1", "--join_timeout_ms=5000"),
    ],
    lambda world, server, host, folder: [
        *("-m", "benchmarks.time_to_loss.torchft_worker", host.address, f"http://{server.address}:{LIGHTHOUSE_PORT}"),
        f"{_least_workers(world)}",
    ],
    package="torchft",
)
CONTENDERS = {
    contender.name: contender
    for contender in (
        _gemps("gemps"),
        _gemps("gemps-adamw", ADAM_RATES, worker="--adamw"),
        _gemps("gemps-plain", GRADIENT_RATES, ("--rule=gem", "--eta={rate}")),
        PLAIN_DDP,
        _ddp("ddp-muon", (*ADAM_RATES, 0.008, 0.016), "--muon"),
        _ddp("ddp-fp16", ADAM_RATES, "--hook fp16"),
        _ddp("ddp-powersgd-4", ADAM_RATES, "--hook powersgd"),
        _ddp("ddp-post-local-sgd-8", ADAM_RATES, "--period 8"),
        _ddp("ddp-post-local-sgd-32", ADAM_RATES, "--period 32"),
        TORCH_RPC,
        FLOWER,
        RAY_TRAIN,
        TORCHFT,
    )
}
