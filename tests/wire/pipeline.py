"""A worker that overlaps: it has computed its next gradient by the time that a commit's reply arrives."""

from dataclasses import dataclass, field

from gemps.v1 import transfer_pb2

from tests.wire.model import Values
from tests.wire.worker import Outcome, RawWorker


@dataclass
class Pipeline:
    """What overlap makes of a worker: each commit's base is the version that came with the reply before the last."""

    worker: RawWorker
    base: transfer_pb2.Version = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.worker.version

    async def commit(self, delta: Values) -> Outcome:
        installed = self.worker.version  # by the reply that came while this commit's gradient was computed
        outcome = await self.worker.commit(delta, base_version=self.base)
        self.base = installed
        return outcome

    async def pull(self) -> None:
        await self.worker.pull()
        self.base = self.worker.version
