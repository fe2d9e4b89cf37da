"""Results as `make bench` would write them, with figures that are easy to reckon with."""

from benchmarks.harness.results import About, Results
from benchmarks.harness.run import Run, quantiles
from benchmarks.peers import CONTENDERS
from benchmarks.peers.interface import Case

MIDDLE = Case(4_194_304, 4)


def run(name: str, rate: float, round_: int = 0, case: Case = MIDDLE, error: str | None = None, memory: int = 0) -> Run:
    """A run of 2 s in which all workers made as many commits."""
    if error is not None:
        return Run(name, case.parameters, case.workers, round_, 2.0, error=error)
    each = 2.0 * rate / case.workers
    return Run(
        name,
        case.parameters,
        case.workers,
        round_,
        2.0,
        commits=[each] * case.workers,
        took=quantiles([case.workers / rate] * 10),
        server_cpu=0.5,
        workers_cpu=1.0,
        server_anonymous=memory,
    )


def results(*runs: Run) -> Results:
    """Of these runs."""
    return Results(
        {"cores": 2},
        {"python": "3"},
        {"rounds": 1 + max((one.round for one in runs), default=0), "seconds": 2.0},
        {name: About.of(CONTENDERS[name]) for name in CONTENDERS},
        runs=list(runs),
    )
