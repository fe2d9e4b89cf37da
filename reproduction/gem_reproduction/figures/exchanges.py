"""Compares the three exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from gem_reproduction import pictures
from gem_reproduction.figures.common import losses
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_EXCHANGES = {"service": "#0a63c2", "paper": "#c2410c", "original": "#228833"}
_WORKERS = (5, 10, 20, 30)
_QUICK_WORKERS = (5, 20)
_COMPUTE, _NETWORK = "lognormal:1,0.25", 0.05


class Exchanges(Figure):
    """GEM under each exchange."""

    name = "exchanges"
    title = "Exchanges · the service's, the paper's, and the original implementation's"
    claim = (
        "The server rescales at the moment of applying (one round trip), and is never worse than the paper's order, "
        "in which a worker pulls, rescales and commits."
    )
    about = (
        "Not a figure of the paper. Commits are served as they arrive; a gradient takes 1 on average (lognormal, "
        "sigma 0.25), a message 0.05 of it. In the paper's order others commit between a worker's pull and its "
        "commit; in the original implementation the server serves no other worker meanwhile, which costs time."
    )
    size = (9.0, 4.0)

    @override
    def subtitle(self, scope: Scope) -> str:
        return scope.beside().subtitle().replace("round-robin", "FIFO, lognormal compute times")

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        times: dict[str, Any] = {"order": "fifo", "compute_time": _COMPUTE, "network_time": _NETWORK}
        return {
            _exchange_name(exchange, n): scope.beside().simulations(workers=n, exchange=exchange, **times)
            for exchange in _EXCHANGES
            for n in (_QUICK_WORKERS if scope.quick else _WORKERS)
        }

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        pairs = [(name, name.replace("service", "paper")) for name in found if name.startswith("service")]
        return [
            Verdict(
                "with every number of workers the service's L is at most 1.1 times that of the paper's order",
                all(found[ours].loss <= 1.1 * found[theirs].loss for ours, theirs in pairs),
                {
                    name: numbers | {"virtual time": _duration(found[name])}
                    for name, numbers in losses(found, list(found)).items()
                },
                must_hold=False,
            )
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2)
        workers = sorted({int(name.split()[1]) for name in found})
        for exchange, colour in _EXCHANGES.items():
            outcomes = found[_exchange_name(exchange, workers[-1])].outcomes
            steps, values = [one.curves.step for one in outcomes], [one.curves.loss for one in outcomes]
            pictures.over_seeds(left, steps, values, f"{exchange}, {workers[-1]} workers", colour)
            final = [[one.loss for one in found[_exchange_name(exchange, n)].outcomes] for n in workers]
            pictures.bars_over_seeds(right, workers, final, exchange, colour)
        pictures.axes_of(left, "worker steps", "training loss (minibatches)", x_scale="log", y_scale="log")
        pictures.axes_of(right, "workers", "final training loss, L", y_scale="log")
        pictures.legend(left)


def _exchange_name(exchange: str, workers: int) -> str:
    return f"{exchange}, {workers} workers"


def _duration(group: Group) -> float:
    return sum(one.evaluations[-1].at for one in group.outcomes) / len(group.outcomes)
