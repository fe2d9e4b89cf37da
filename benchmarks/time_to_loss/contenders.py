"""Who trains, each as its own documentation says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.environments import PEERS, has_peer, interpreter
from benchmarks.time_to_loss.worlds import WORKERS, Host, World

SERVER_PORT, RENDEZVOUS_PORT = 50051, 29400
RAY_PORT, LIGHTHOUSE_PORT = "6379", "29510"
GEMPS = f"-m gem_cli serve --insecure --min-workers={WORKERS}".split()
# The rule for workers' own optimizers; docs/own-optimizer.md has how it was chosen.
LOCAL = ("--rule=adaptive-staleness",)


@dataclass(frozen=True)
class Contender:
    """server: Python's arguments on the server's host, given the rate and the run's folder.

    worker: those on a worker's host, given the world, the server's host, its own and the run's folder.
    rates: to search. package: what it needs of the peers' environment.
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


def _gemps(name: str, rates: Sequence[float], flags: Sequence[str], worker: str = "") -> Contender:
    """flags: of the server, with the rate as eta unless the workers have an optimizer; {folder}: the run's."""

    def server(host: Host, rate: float, folder: Path) -> list[str]:
        eta = [] if "--every" in worker else [f"--eta={rate}"]
        return [*GEMPS, f"--bind={host.address}:{SERVER_PORT}", *(flag.format(folder=folder) for flag in flags), *eta]

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
AVERAGED_RATES = (0.0004, 0.0007)
ADAM_RATES = (0.002, 0.004)
AVERAGED = ("--precondition=averaged-rms", "--weight-decay=0.1")
LOCAL_AVERAGED_RATES = {4: (0.0008, 0.0012), 8: (0.0012, 0.0018)}
SPECTRAL = (*AVERAGED, "--direction=spectral")
LOCAL_SPECTRAL_RATES = {4: (0.0015, 0.002), 8: (0.002, 0.003)}
SPARSE = "--delta-wire sparse --parameter-wire int4"
PLAIN_DDP = _ddp("ddp", ADAM_RATES)
# For goodput, where the server fails as well.
DURABLE = _gemps(
    "gemps-durable", AVERAGED_RATES, (*AVERAGED, "--data-dir={folder}/data", "--durability=commit", "--resume")
)
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
        _gemps("gemps", GRADIENT_RATES, ()),
        _gemps("gemps-4-sparse", GRADIENT_RATES, ("--local-steps=4",), SPARSE),
        _gemps("gemps-averaged-rms", AVERAGED_RATES, AVERAGED),
        _gemps("gemps-averaged-rms-sparse", AVERAGED_RATES, AVERAGED, SPARSE),
        *(
            _gemps(f"gemps-averaged-rms-{steps}-sparse", rates, (*AVERAGED, f"--local-steps={steps}"), SPARSE)
            for steps, rates in LOCAL_AVERAGED_RATES.items()
        ),
        *(
            _gemps(f"gemps-spectral-{steps}-sparse", rates, (*SPECTRAL, f"--local-steps={steps}"), SPARSE)
            for steps, rates in LOCAL_SPECTRAL_RATES.items()
        ),
        _gemps("gemps-adamw-8", ADAM_RATES, LOCAL, "--every 8"),
        _gemps("gemps-adamw-8-sparse", ADAM_RATES, LOCAL, f"--every 8 {SPARSE}"),
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
