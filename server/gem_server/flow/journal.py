"""Makes commits durable; `durability.log_journal` implements it."""

from collections.abc import Awaitable, Callable

from gem_server.flow.requests import CommitRequest
from gem_server.state.central_variable import Snapshot
from gem_server.state.kept_rule import KeptRule
from gem_server.state.ledger import Verdict
from gem_server.state.run import Run


class Journal:
    """Keeps applied commits. Each commit reserves space before it is queued, and is shown once it is durable.

    This class keeps nothing: every commit counts as durable.
    """

    def has_room(self) -> bool:
        """Whether there is space for a commit. Raises NOT_INITIALIZED, DRAINING."""
        return True

    async def make_room(self) -> None:
        """Wait for space. Raises STORAGE_FULL, DRAINING."""

    def reserve(self) -> bool:
        """Reserve space, if there is some. Raises as `has_room`."""
        return True

    def release(self) -> None:
        """Release the reservation of a commit that was not queued."""

    async def wait_unread(self, snapshot: Snapshot) -> None:
        """Wait until nothing reads this snapshot."""

    async def begin(self, snapshot: Snapshot) -> None:
        """Expect `committed`, which changes this snapshot; waits as `wait_unread`."""

    async def committed(
        self,
        request: CommitRequest,
        verdict: Verdict,
        run: Run,
        result: Callable[[], Awaitable[tuple[Snapshot, KeptRule]]],
    ) -> None:
        """Keep an applied commit, using its reservation. `result()`: parameters and rule after it."""

    async def wait_durable(self, clock: int) -> None:
        """Wait until all commits up to `clock` are durable. Raises DRAINING."""


class NoJournal(Journal):
    """The journal of a server without a log, which does nothing."""
