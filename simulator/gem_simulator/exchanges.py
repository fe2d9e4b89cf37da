"""Ways in which a worker and the server settle a step. What each does to the parameters is here; when, in timeline.py.

    service    the worker sends its delta; the server rescales it when it is applied, and answers with the parameters.
               One round trip a step: what the gemps server does (DESIGN.md, section 2).
    paper      algorithm 1 of Hermans and Louppe (2018): the worker fetches theta, rescales its delta with the drift
               theta - s, sends what came of it, and goes on at the theta that it fetched. Between the two requests
               others commit, of which its pi knows nothing.
    original   the authors' implementation: as in the paper, but the server serves one worker at a time, from fetching
               to commit, and the worker goes on at theta with its own update. The arithmetic is then that of the
               service; but everybody waits while one worker's messages travel.

The rules are gem_core's, as they are. Under `paper` a worker runs its rule on a copy of the theta that it fetched, and
sends the difference that this made.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gem_core import Statistics, UpdateRule, WorkerState
from gem_simulator.events import Kind


class Exchange(ABC):
    """One way, for one worker.

    Attributes:
        name: what settings call it.
        requests: those of a step, in order.
        holds: whether the server serves nobody else during a step's exchange.
        state: the rule's; its snapshot is s_w, what the worker holds.
    """

    name: ClassVar[str]
    requests: ClassVar[tuple[Kind, ...]] = (Kind.COMMITTED,)
    holds: ClassVar[bool] = False

    def __init__(self, rule: UpdateRule, parameters: NDArray[np.float32]) -> None:
        self._rule = rule
        self.state: WorkerState = rule.new_worker(parameters)

    @abstractmethod
    def fetched(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> Statistics | None:
        """The worker's first request of a step is served; where the server rescales there is none."""

    @abstractmethod
    def committed(
        self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int
    ) -> Statistics | None:
        """The commit is applied to `parameters`. Gives the statistics, unless `fetched` did."""


class ServiceExchange(Exchange):
    """See the module."""

    name = "service"

    def fetched(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> None:
        """There is no such request."""
        raise AssertionError("the service has one request a step")

    def committed(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> Statistics:
        """The server applies the rule."""
        return self._rule.commit(parameters, self.state, delta, staleness)


class OriginalExchange(ServiceExchange):
    """See the module."""

    name = "original"
    holds = True


class PaperExchange(Exchange):
    """See the module."""

    name = "paper"
    requests = (Kind.FETCHED, Kind.COMMITTED)

    def __init__(self, rule: UpdateRule, parameters: NDArray[np.float32]) -> None:
        super().__init__(rule, parameters)
        self._update = np.empty_like(parameters)

    def fetched(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> Statistics:
        """The worker rescales: `delta` was computed at s_w, and becomes an update; s_w becomes `parameters`."""
        np.copyto(self._update, parameters)
        statistics = self._rule.commit(self._update, self.state, delta, staleness)
        self._update -= parameters
        np.copyto(self.state.snapshot, parameters)
        return statistics

    def committed(self, parameters: NDArray[np.float32], delta: NDArray[np.float32], staleness: int) -> None:
        """The server adds what it is sent."""
        parameters += self._update


EXCHANGES: dict[str, type[Exchange]] = {one.name: one for one in (ServiceExchange, PaperExchange, OriginalExchange)}
