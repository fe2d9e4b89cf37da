"""Rules that act on every Kth commit."""

from __future__ import annotations

from types import MappingProxyType

from gem_core.rules.interface import Setting, UpdateRule, WorkerStep

__all__ = ["LOCAL_STEPS", "BufferedRule"]

LOCAL_STEPS = Setting("local_steps", 1, 1, 1e6, "local steps of a worker, whose sum it commits", whole=True)


class BufferedRule(UpdateRule):
    """Fills a buffer with K deltas; `size` is K."""

    first_scalars = MappingProxyType({"commits": 0})
    size: int

    @property
    def worker_step(self) -> WorkerStep:
        """`local_steps` steps, summed."""
        return WorkerStep(int(self.settings["local_steps"]))

    def _fill(self, staleness: int) -> tuple[bool, int]:
        commits = int(self.scalars_of_run["commits"])
        self.scalars_of_run["commits"] = commits + 1
        return (commits + 1) % self.size == 0, commits // self.size - (commits - staleness) // self.size
