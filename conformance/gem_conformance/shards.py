"""What the servers of one scenario must agree on, if the model is divided between several (shards.proto)."""

from __future__ import annotations

import threading

from gemps.v1 import commit_pb2, session_pb2

from gem_conformance.faults import FaultError, FaultName, Place
from gem_core.shards import Shard

__all__ = ["ShardGroup"]


class ShardGroup:
    """State that the threads of all servers of a scenario share.

    Each server plays the scenario in its own thread. They wait for each other at meetings: before they apply or refuse
    a commit, accept first parameters, or restart. Meetings are numbered from 0.

    Attributes:
        count: the number of servers.
        pulled_clock: the clock of the version that the primary sent in its newest answer to Pull.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.pulled_clock = 0
        self._join = session_pb2.JoinRequest()
        self._lock = threading.Lock()
        self._arrived = 0
        self._used: set[int] = set()
        self._sequence = self._commit_id = 0
        self._is_open = False

    def arrive(self) -> int:
        """Register the calling thread at its next meeting, and return the number of that meeting."""
        with self._lock:
            self._arrived += 1
            return (self._arrived - 1) // self.count

    def all_are_at(self, meeting: int) -> bool:
        """Return whether the threads of all servers have arrived at a meeting."""
        return self._arrived >= (meeting + 1) * self.count

    def judge_join(self, shard: Shard, request: session_pb2.JoinRequest) -> session_pb2.JoinRequest:
        """Return the primary's Join request, which stands for those at other shards: there only session_id counts.

        Raises:
            FaultError: the candidate joined another shard before the primary, or with another session id.
        """
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
        """Forget the session, so that the next Join must come to the primary."""
        self._join = session_pb2.JoinRequest()

    def judge_commit(self, header: commit_pb2.CommitHeader, *, is_repeat: bool) -> None:
        """Check that all pieces of a delta have the same sequence and commit_id, and that no other delta had this id.

        Args:
            header: the header of one piece.
            is_repeat: whether this commit was applied already, so that its ids must be those of the newest delta.

        Raises:
            FaultError: the ids differ between pieces, or the commit_id is 0 or was used before.
        """
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

    def close_delta(self) -> None:
        """End the current delta, which was applied or dropped: the next commit has a new commit_id."""
        self._is_open = False
