"""What shards agree on: where records end, and what is durable on all."""

from pathlib import Path

from gem_server.errors import RefusedError


class Agreement:
    """For one server with the whole model."""

    closes_groups = True

    def group_closed(self, clock: int) -> None:
        """A record ends at `clock`."""

    def written(self, clock: int) -> int:
        """This server's log has `clock` on its disk; return up to where all shards have."""
        return clock

    def cut(self, clock: int) -> None:
        """A checkpoint of `clock` begins, between two commits."""

    async def wait_checkpoint(self, clock: int, path: Path) -> None:
        """Wait until each shard has this checkpoint. Raises OSError."""

    def checkpoint_failed(self, clock: int, error: OSError | RefusedError) -> None:
        """This server could not write it."""
