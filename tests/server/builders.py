"""Real parts of the server, put together by hand for tests that need no network."""

from dataclasses import dataclass, field

from gem_server.state.ledger import Ledger
from gem_server.state.memory import MemoryBudget
from gem_server.state.run import Budget, Run
from gem_server.state.schedule import EtaSchedule
from gem_server.state.sessions import JoinInfo, Session, Sessions
from gem_server.state.workers import Workers

from gem_core import ElementType, Layout, TensorKind, TensorSpec, WireType


def layout(elements: int = 8, name: str = "weight") -> Layout:
    return Layout([TensorSpec(name, (elements,), ElementType.FLOAT32, TensorKind.PARAMETER)])


def session_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def joining(number: int, name: str | None = None, model: Layout | None = None, **more: object) -> JoinInfo:
    return JoinInfo(
        session_id(number),
        name if name is not None else f"worker-{number}",
        str(more.pop("host_id", "host")),
        model or layout(),
        WireType.FLOAT32,
        WireType.FLOAT32,
        **more,  # type: ignore[arg-type]
    )


def run(budget: Budget | None = None, min_workers: int = 1, eta: float = 0.05) -> Run:
    return Run(budget or Budget(), EtaSchedule("constant", eta), min_workers)


@dataclass
class Registry:
    """A session registry with everything it needs; `bound` is the run's layout, `now` the clock that joins see."""

    run: Run = field(default_factory=run)
    max_sessions: int = 100
    memory_limit: int = 10**9
    timeout: float = 120.0
    bound: Layout | None = None

    def __post_init__(self) -> None:
        self.now = 0.0
        self.sessions = Sessions(
            self.run,
            Ledger(4 * self.max_sessions),
            Workers(4 * self.max_sessions),
            MemoryBudget(self.memory_limit, staging_buffers=4, vectors_per_worker=2),
            self.max_sessions,
            self.timeout,
            lambda: self.bound,
        )

    def join(self, number: int, name: str | None = None, **more: object) -> Session:
        return self.sessions.join(joining(number, name, **more), self.now)
