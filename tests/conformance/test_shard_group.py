"""Tests of what the servers of one scenario must agree on, and of the faults that they report."""

import pytest
from gem_conformance import FaultError, FaultName
from gem_conformance.shards import ShardGroup
from gemps.v1 import commit_pb2, session_pb2

from gem_core.shards import Shard

PRIMARY, OTHER = Shard(0, 2), Shard(1, 2)


def piece(group: ShardGroup, sequence: int, commit_id: int, *, is_repeat: bool = False) -> FaultName | None:
    try:
        group.judge_commit(commit_pb2.CommitHeader(sequence=sequence, commit_id=commit_id), is_repeat=is_repeat)
    except FaultError as fault:
        return fault.name
    return None


def test_the_pieces_of_a_delta_have_one_sequence_and_one_commit_id() -> None:
    group = ShardGroup(2)
    assert [piece(group, 1, 7), piece(group, 1, 7)] == [None, None]
    group.close_delta()
    assert [piece(group, 2, 8), piece(group, 2, 9)] == [None, FaultName.WRONG_COMMIT_ID]


def test_a_commit_id_must_not_be_0_and_must_be_new_for_each_delta() -> None:
    group = ShardGroup(2)
    assert piece(group, 1, 0) is FaultName.WRONG_COMMIT_ID
    assert piece(group, 1, 7) is None
    group.close_delta()
    assert piece(group, 2, 7) is FaultName.WRONG_COMMIT_ID


def test_a_repeat_has_the_commit_id_of_the_first_attempt() -> None:
    group = ShardGroup(2)
    piece(group, 1, 7)
    group.close_delta()
    assert [piece(group, 1, 7, is_repeat=True), piece(group, 1, 8, is_repeat=True)] == [None, FaultName.WRONG_COMMIT_ID]


@pytest.mark.parametrize("joined", [None, bytes(range(16))])
def test_join_comes_to_the_primary_first_and_with_one_session_id(joined: bytes | None) -> None:
    group = ShardGroup(2)
    if joined is not None:
        group.judge_join(PRIMARY, session_pb2.JoinRequest(session_id=joined, worker_name="w"))
        assert group.judge_join(OTHER, session_pb2.JoinRequest(session_id=joined)).worker_name == "w"
    with pytest.raises(FaultError) as caught:
        group.judge_join(OTHER, session_pb2.JoinRequest(session_id=bytes(range(1, 17))))
    assert caught.value.name is (FaultName.OUT_OF_ORDER if joined is None else FaultName.WRONG_SESSION)
