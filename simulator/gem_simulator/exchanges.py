"""Exchanges of docs/simulation.md; timing is in timeline.py.

Under `paper`, algorithm 1 of Hermans and Louppe (2018), a worker runs its rule on a copy of theta and sends the
difference: pi ignores commits in between.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gem_core import RuleState, Statistics, UpdateRule
from gem_simulator.events import Kind


class Exchange(ABC):
    """One worker's exchange.

    `requests`: of a step. `holds`: a step blocks other workers. `state`: the rule's; its snapshot has the worker's
    parameters.
    """

    name: ClassVar[str]
    requests: ClassVar[tuple[Kind, ...]] = (Kind.COMMITTED,)
    holds: ClassVar[bool] = False

    def __init__(self, rule: UpdateRule, parameters: NDArray[np.float32], eta: float) -> None:
        self._rule = rule
        self._eta = eta
        self.state: RuleState = rule.new_worker(parameters)

    @abstractmethod
    def fetched(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> Statistics | None:
        """Serve a step's first request."""

    @abstractmethod
    def committed(
        self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int
    ) -> Statistics | None:
        """Apply the commit; return statistics unless `fetched` did."""


class ServiceExchange(Exchange):
    """See the module."""

    name = "service"

    def fetched(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> None:
        """Raise; there is no such request."""
        raise AssertionError("the service has one request a step")

    def committed(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> Statistics:
        """Apply the rule."""
        return self._rule.commit(parameters, self.state, delta, staleness, self._eta)


class OriginalExchange(ServiceExchange):
    """See the module."""

    name = "original"
    holds = True


class PaperExchange(Exchange):
    """See the module."""

    name = "paper"
    requests = (Kind.FETCHED, Kind.COMMITTED)

    def __init__(self, rule: UpdateRule, parameters: NDArray[np.float32], eta: float) -> None:
        super().__init__(rule, parameters, eta)
        self._update = np.empty_like(parameters)

    def fetched(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> Statistics:
        """Turn `delta` into an update; set s_w to `parameters`."""
        np.copyto(self._update, parameters)
        statistics = self._rule.commit(self._update, self.state, delta, staleness, self._eta)
        self._update -= parameters
        np.copyto(self.state.snapshot, parameters)
        return statistics

    def committed(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> None:
        """Add the update."""
        parameters += self._update


EXCHANGES: dict[str, type[Exchange]] = {one.name: one for one in (ServiceExchange, PaperExchange, OriginalExchange)}
