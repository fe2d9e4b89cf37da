"""What shards agree on: where records end, and what is durable on all."""


class Agreement:
    """The agreement of one server that has the whole model, and no other shards to wait for."""

    closes_groups = True

    def group_closed(self, clock: int) -> None:
        """A record ends at `clock`."""

    def written(self, clock: int) -> int:
        """This server's log has `clock` on its disk; return up to where all shards have."""
        return clock

    def request_checkpoint(self) -> bool:
        """Ask the primary for a checkpoint; False: this server decides."""
        return False

    def cut(self) -> None:
        """A checkpoint begins, between two commits."""

    def checkpoint_begun(self, number: int) -> None:
        """This server writes the checkpoint that the primary has numbered."""

    async def wait_checkpoint(self) -> None:
        """Wait until each shard has it. Raises OSError, RefusedError."""

    def checkpoint_failed(self, error: Exception) -> None:
        """This server could not write it."""
