"""The log as the journal that `flow` writes to."""

from collections.abc import Awaitable, Callable

from typing_extensions import override

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

    @override
    def has_room(self) -> bool:
        return self._log.has_room()

    @override
    async def make_room(self) -> None:
        await self._log.make_room()

    @override
    def reserve(self) -> bool:
        return self._log.try_reserve()

    @override
    def release(self) -> None:
        self._log.release_reservation()

    @override
    async def wait_unread(self, snapshot: Snapshot) -> None:
        await self._log.still(snapshot)

    @override
    async def wait_durable(self, clock: int) -> None:
        await self._log.until(clock)

    @override
    async def begin(self, snapshot: Snapshot) -> None:
        await self._log.still(snapshot)
        self._log.keep_group_open()

    @override
    async def committed(
        self,
        request: CommitRequest,
        verdict: Verdict,
        run: Run,
        result: Callable[[], Awaitable[tuple[Snapshot, KeptRule]]],
    ) -> None:
        snapshot, rule = await result()
        session = request.session
        worker = run_record.describe_worker(session.worker)
        entry = Committed(session.session_id, worker, request.content, verdict, request.loss, request.samples)
        self._log.append(entry, run_record.totals(run), snapshot, rule)
