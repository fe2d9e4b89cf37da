"""The log as the journal that `flow` writes to."""

from collections.abc import Awaitable, Callable

from gem_server.durability import run_record
from gem_server.durability.log import Log
from gem_server.durability.run_record import Committed
from gem_server.flow.journal import Journal
from gem_server.flow.requests import CommitRequest
from gem_server.state.central_variable import Snapshot
from gem_server.state.kept_rule import KeptRule
from gem_server.state.ledger import Verdict
from gem_server.state.run import Run


class LogJournal(Journal):
    """Writes commits to the log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def has_room(self) -> bool:
        """See Journal."""
        return self._log.has_room()

    async def make_room(self) -> None:
        """See Journal."""
        await self._log.make_room()

    def reserve(self) -> bool:
        """See Journal."""
        return self._log.try_reserve()

    def release(self) -> None:
        """See Journal."""
        self._log.release_reservation()

    async def wait_unread(self, snapshot: Snapshot) -> None:
        """See Journal."""
        await self._log.still(snapshot)

    async def wait_durable(self, clock: int) -> None:
        """See Journal."""
        await self._log.until(clock)

    async def begin(self, snapshot: Snapshot, worker: str) -> None:
        """See Journal."""
        await self._log.still(snapshot, worker)
        self._log.keep_group_open()

    async def committed(
        self,
        request: CommitRequest,
        verdict: Verdict,
        run: Run,
        result: Callable[[], Awaitable[tuple[Snapshot, KeptRule]]],
    ) -> None:
        """See Journal."""
        snapshot, rule = await result()
        session = request.session
        worker = run_record.describe_worker(session.worker)
        entry = Committed(session.session_id, worker, request.content, verdict, request.loss, request.samples)
        self._log.append(entry, run_record.totals(run), snapshot, rule)
