"""The log as the journal that `flow` writes to."""

from collections.abc import Awaitable, Callable

from gem_server.durability import run_record
from gem_server.durability.log import Log
from gem_server.durability.run_record import Committed
from gem_server.flow.requests import CommitRequest
from gem_server.state.central_variable import Snapshot
from gem_server.state.ledger import Verdict
from gem_server.state.run import Run


class LogJournal:
    """See flow.journal.Journal."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.has_room = log.has_room
        self.make_room = log.make_room
        self.reserve = log.take_promise
        self.release = log.give_back_promise
        self.wait_unread = log.still
        self.wait_durable = log.until

    async def begin(self, snapshot: Snapshot) -> None:
        """See Journal."""
        await self._log.still(snapshot)
        self._log.hold()

    async def committed(
        self, request: CommitRequest, verdict: Verdict, run: Run, theta: Callable[[], Awaitable[Snapshot]]
    ) -> None:
        """See Journal."""
        snapshot = await theta()
        session = request.session
        worker = run_record.describe_worker(session.worker)
        entry = Committed(session.session_id, worker, request.content, verdict, request.loss, request.samples)
        self._log.append(entry, run_record.totals(run), snapshot)
