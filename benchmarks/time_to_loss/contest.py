"""One run: a contender trains a workload in a world until the target."""

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from benchmarks.time_to_loss.contenders import Contender
from benchmarks.time_to_loss.failures import periodic
from benchmarks.time_to_loss.fleet import Fleet
from benchmarks.time_to_loss.workload import WORKLOADS
from benchmarks.time_to_loss.worlds import WORKERS, World, made


@dataclass
class Outcome:
    """seconds: until the target; None: not reached (`why`). curve: seconds, held-out loss. sent: bytes of all hosts."""

    world: str
    contender: str
    workload: str
    rate: float
    seed: int
    seconds: float | None = None
    why: str = ""
    sent: int = 0
    failures: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Fields."""
        return asdict(self)


def run(contender: Contender, world: World, workload: str, rate: float, seed: int, limit: float) -> Outcome:
    """Train for `limit` seconds at most."""
    outcome = Outcome(world.name, contender.name, workload, rate, seed)
    settings = {"RATE": f"{rate}", "SEED": f"{seed}", "WORKLOAD": workload}
    trained = WORKLOADS[workload]
    model = trained.model(0)
    failures = periodic(WORKERS, seed) if world.failures else iter(())
    with (
        tempfile.TemporaryDirectory(prefix="gemps-time-") as folder,
        made(world) as hosts,
        Fleet(contender, world, hosts, Path(folder), settings).running(failures) as fleet,
    ):
        before = fleet.bytes_sent()
        while outcome.seconds is None and not fleet.why and fleet.seconds < limit:
            fleet.poll()
            for seconds, _, path in fleet.snapshots():
                vector_to_parameters(torch.from_numpy(np.load(path)), model.parameters())
                path.unlink()
                loss = trained.held_out_loss(model)
                outcome.curve.append((round(seconds, 2), round(loss, 4)))
                if loss <= trained.target and outcome.seconds is None:
                    outcome.seconds = seconds
        outcome.sent = fleet.bytes_sent() - before
        outcome.failures = fleet.failed
        if outcome.seconds is None:
            outcome.why = fleet.why or f"not within {limit:g} s"
    return outcome
