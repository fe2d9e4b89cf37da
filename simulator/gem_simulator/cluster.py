"""Server's and workers' state."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gem_core import RuleState, Statistics, UpdateRule
from gem_simulator.events import Event, Kind
from gem_simulator.exchanges import Exchange
from gem_simulator.workload import Delta, Hand, Workload

# Read-only observer of theta, worker state and delta.
BeforeRule = Callable[[NDArray[np.float32], RuleState, NDArray[np.float32]], None]


def ignore_delta(parameters: NDArray[np.float32], state: RuleState, delta: NDArray[np.float32]) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Commit:
    """An applied commit, with the columns of docs/simulation.md.

    `clock`: after it. `base`: clock of the gradient's parameters. `loss` None: not finite.
    """

    at: float
    waited: float
    rank: int
    sequence: int
    clock: int
    base: int
    loss: float | None
    samples: int
    skipped: int
    statistics: Statistics

    @property
    def staleness(self) -> int:
        """Commits applied in between."""
        return self.clock - 1 - self.base


@dataclass(slots=True)
class _Worker:
    hand: Hand
    exchange: Exchange
    base: int
    buffers: bytes
    sequence: int = 0
    under_way: tuple[Delta, Statistics, int, int] | None = None


class Cluster:
    """A run from its first parameters (clock 1).

    `on_delta`: called before a delta is applied, except in the paper's exchange. `parameters`: theta, float32.
    """

    def __init__(
        self,
        workload: Workload,
        rule: UpdateRule,
        exchange: type[Exchange],
        eta: float,
        on_delta: Callable[[int, Delta], None] = lambda rank, delta: None,
        before_rule: BeforeRule = ignore_delta,
    ) -> None:
        self._workload = workload
        self._rule = rule
        self._exchange = exchange
        self._eta = eta
        self._on_delta = on_delta
        self._before_rule = before_rule
        rule.begin(workload.layout)
        self.parameters, self.buffers = workload.first()
        self.clock = 1
        self._hands: dict[int, Hand] = {}
        self._workers: dict[int, _Worker] = {}

    def apply(self, event: Event) -> Commit | None:
        """Apply an event; return its commit. Raises DivergedError."""
        if event.kind is Kind.JOINED:
            self._hands[event.rank] = self._workload.hand(event.rank)
        elif event.kind is Kind.PULLED:
            exchange = self._exchange(self._rule, self.parameters, self._eta)
            self._workers[event.rank] = _Worker(self._hands.pop(event.rank), exchange, self.clock, self.buffers)
        elif event.kind is Kind.FETCHED:
            self._fetch(self._workers[event.rank])
        elif event.kind is Kind.COMMITTED:
            return self._commit(event, self._workers[event.rank])
        elif event.rank in self._workers:
            self._rule.forget_worker(self._workers[event.rank].exchange.state)
        return None

    def _compute(self, worker: _Worker) -> tuple[Delta, int]:
        """Lazy: the worker's parameters are still its reply's."""
        return self._workload.step(worker.hand, worker.exchange.state.snapshot, worker.buffers, self._eta)

    def _merged(self, given: bytes, sent: bytes) -> bytes:
        """The BUFFERs after a commit: those that the worker has not changed do not travel (commit.proto)."""
        if self.buffers == given:
            return sent
        pieces, start = [], 0
        for tensor in self._workload.layout.buffers:
            part = slice(start, start + tensor.byte_count)
            pieces.append(self.buffers[part] if sent[part] == given[part] else sent[part])
            start = part.stop
        return b"".join(pieces)

    def _fetch(self, worker: _Worker) -> None:
        delta, skipped = self._compute(worker)
        base = worker.base
        self._before_rule(self.parameters, worker.exchange.state, delta.values)
        statistics = worker.exchange.fetched(self.parameters, delta.values, self.clock - base)
        assert statistics is not None
        worker.under_way = delta, statistics, base, skipped
        worker.base, worker.buffers = self.clock, delta.buffers

    def _commit(self, event: Event, worker: _Worker) -> Commit:
        if worker.under_way is None:
            delta, skipped = self._compute(worker)
            delta = replace(delta, buffers=self._merged(worker.buffers, delta.buffers))
            base = worker.base
            self._on_delta(event.rank, delta)
            self._before_rule(self.parameters, worker.exchange.state, delta.values)
            statistics = worker.exchange.committed(self.parameters, delta.values, self.clock - base)
            assert statistics is not None
            worker.base, worker.buffers = self.clock + 1, delta.buffers
        else:
            delta, statistics, base, skipped = worker.under_way
            worker.under_way = None
            worker.exchange.committed(self.parameters, delta.values, self.clock - base)
        self.buffers = delta.buffers
        self.clock += 1
        worker.sequence += 1
        return Commit(
            event.at,
            event.waited,
            event.rank,
            worker.sequence,
            self.clock,
            base,
            delta.loss,
            delta.samples,
            skipped,
            statistics,
        )
