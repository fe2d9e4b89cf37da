"""What the servers of one scenario agree on (shards.proto)."""

from __future__ import annotations

import threading

from gemps.v1 import commit_pb2, session_pb2

from gem_conformance.faults import FaultError, FaultName, Place
from gem_core.shards import Shard

__all__ = ["ShardGroup"]


class ShardGroup:
    """Shared by the servers' threads. `pulled`: the clock of the primary's newest pull."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.pulled = 0
        self._join = session_pb2.JoinRequest()
        self._lock = threading.Lock()
        self._arrived = 0
        self._used: set[int] = set()
        self._sequence = self._commit_id = 0
        self._is_open = False

    def arrive(self) -> int:
        """Register a thread at the next meeting; return the meeting's number."""
        with self._lock:
            self._arrived += 1
            return (self._arrived - 1) // self.count

    def all_are_at(self, meeting: int) -> bool:
        """Whether all threads have arrived."""
        return self._arrived >= (meeting + 1) * self.count

    def judge_join(self, shard: Shard, request: session_pb2.JoinRequest) -> session_pb2.JoinRequest:
        """Return the primary's request, which must come first. Raises FaultError."""
        if not shard.is_secondary:
            self._join = request
        elif not self._join.session_id:
            raise FaultError(
                FaultName.OUT_OF_ORDER, "Join at the primary first", f"Join at shard {shard}", Place.SHARDS
            )
        elif request.session_id != self._join.session_id:
            raise FaultError(
                FaultName.WRONG_SESSION, "the session id of the primary at each shard", "another one", Place.SHARDS
            )
        return self._join

    def end_session(self) -> None:
        """Require Join at the primary again."""
        self._join = session_pb2.JoinRequest()

    def judge_commit(self, header: commit_pb2.CommitHeader, *, is_repeat: bool) -> None:
        """Require one sequence and commit_id for all pieces of a delta. Raises FaultError."""
        if self.count == 1:
            return
        with self._lock:
            came = f"sequence {header.sequence}, commit_id {header.commit_id:#x}"
            if is_repeat or self._is_open:
                if (header.sequence, header.commit_id) != (self._sequence, self._commit_id):
                    expected = f"sequence {self._sequence}, commit_id {self._commit_id:#x} in each piece of this delta"
                    raise FaultError(FaultName.WRONG_COMMIT_ID, expected, came, Place.SHARDS)
                return
            if header.commit_id in self._used | {0}:
                expected = "a commit_id other than 0, new for each delta"
                raise FaultError(FaultName.WRONG_COMMIT_ID, expected, came, Place.SHARDS)
            self._used.add(header.commit_id)
            self._sequence, self._commit_id, self._is_open = header.sequence, header.commit_id, True

    def settle(self) -> None:
        """The delta was applied or dropped."""
        self._is_open = False
