import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.flow.request_queue import FifoQueue
from gem_server.flow.staging_pool import StagingPool
from gem_server.state.memory import MemoryBudget
from gem_server.state.run import Budget
from gem_server.state.workers import Worker, WorkerState

from gem_core import ElementType, Layout, TensorKind, TensorSpec

from .builders import Registry, joining, layout, run, session_id


class Recorder:
    """Stands where a running call stands."""

    def __init__(self) -> None:
        self.reason: Exception | None = None

    def end(self, reason: Exception) -> None:
        self.reason = reason


def refusal_of(registry: Registry, number: int, name: str | None = None, **more: object) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        registry.join(number, name, **more)
    return refused.value


def many_tensors(name: str) -> Layout:
    return Layout(TensorSpec(f"{name}.{i}", (1,), ElementType.FLOAT32, TensorKind.PARAMETER) for i in range(10_000))


def test_ranks_count_up_and_follow_the_name() -> None:
    registry = Registry()
    assert [registry.join(number).worker.rank for number in (1, 2, 3)] == [0, 1, 2]
    registry.sessions.leave(registry.sessions.get(session_id(2), 0))
    assert registry.join(4).worker.rank == 3  # nobody inherits a rank
    assert registry.join(5, "worker-2").worker.rank == 1


def test_rank_on_the_host_is_the_lowest_free_one_of_that_host() -> None:
    registry = Registry()
    ranks = [registry.join(n, host_id=host).worker.host_rank for n, host in ((1, "x"), (2, "y"), (3, "x"), (4, "y"))]
    assert ranks == [0, 0, 1, 1]
    registry.sessions.leave(registry.sessions.get(session_id(1), 0))
    assert registry.join(5, host_id="x").worker.host_rank == 0


def test_joining_again_with_a_live_id_changes_nothing() -> None:
    registry = Registry()
    session = registry.join(1)
    registry.now = 5.0
    assert registry.join(1) is session
    assert (session.worker.sessions, session.last_call) == (1, 5.0)


def test_same_name_with_another_id_ends_the_older_session_and_its_calls() -> None:
    registry = Registry()
    older = registry.join(1, "w")
    older.commit_call = commit = Recorder()
    newer = registry.join(2, "w")
    assert newer.worker is older.worker
    assert isinstance(commit.reason, RefusedError)
    assert commit.reason.reason is Reason.NEWER_SESSION
    with pytest.raises(RefusedError) as refused:
        registry.sessions.get(session_id(1), 0)
    assert refused.value.reason is Reason.NEWER_SESSION
    assert len(registry.sessions) == 1


def test_superseded_session_cannot_join_again_and_take_its_name_back() -> None:
    registry = Registry()
    registry.join(1, "w")
    newer = registry.join(2, "w")
    assert refusal_of(registry, 1, "w").reason is Reason.NEWER_SESSION
    assert newer.ended is None


def test_superseding_join_fits_where_the_older_session_was_the_last_that_fitted() -> None:
    registry = Registry(max_sessions=1)
    registry.join(1, "w")
    assert refusal_of(registry, 2, "other").reason is Reason.TOO_MANY
    registry.join(3, "w")


def test_refused_join_leaves_the_older_session_alive() -> None:
    registry = Registry(bound=layout(8))
    registry.join(1, "w", model=layout(8))
    assert refusal_of(registry, 2, "w", model=layout(9)).reason is Reason.LAYOUT_MISMATCH
    assert registry.sessions.get(session_id(1), 0).worker.name == "w"


def test_live_id_with_another_name_or_layout_is_refused() -> None:
    registry = Registry()
    registry.join(1, "w")
    assert refusal_of(registry, 1, "v").reason is Reason.MALFORMED
    assert refusal_of(registry, 1, "w", model=layout(9)).reason is Reason.MALFORMED


def test_id_of_a_session_that_left_cannot_be_taken_by_another_name() -> None:
    registry = Registry()
    registry.sessions.leave(registry.join(1, "w"))
    assert refusal_of(registry, 1, "v").reason is Reason.MALFORMED
    assert registry.join(1, "w").entry.last_applied == 0


def test_silent_session_expires_and_an_open_call_keeps_it() -> None:
    registry = Registry(timeout=10.0)
    silent, busy = registry.join(1), registry.join(2)
    busy.open_calls = 1
    assert registry.sessions.expire(9.9) == []
    assert registry.sessions.expire(10.0) == [silent]
    assert silent.worker.state is WorkerState.EXPIRED
    with pytest.raises(RefusedError) as refused:
        registry.sessions.get(session_id(1), 11.0)
    assert refused.value.reason is Reason.EXPIRED_SESSION
    assert registry.join(1).ended is None  # the same id may come back


def test_memory_of_an_ended_session_is_given_back() -> None:
    registry = Registry()
    before = registry.sessions.memory.reserved
    registry.sessions.leave(registry.join(1))
    assert registry.sessions.memory.reserved == before


def test_worker_that_does_not_fit_is_refused_with_the_numbers_and_nothing_changes() -> None:
    model = layout(1000)
    # theta, 4 buffers, 2 shared snapshots; one worker; the layout.
    registry = Registry(memory_limit=4000 * 7 + 8000 + model.object_bytes)
    registry.join(1, model=model)
    before = registry.sessions.memory.reserved
    refusal = refusal_of(registry, 2, model=model)
    assert refusal.reason is Reason.MEMORY
    assert refusal.retry_after is not None  # it fits when the other leaves
    assert "8,000" in refusal.message
    assert (registry.sessions.memory.reserved, len(registry.sessions)) == (before, 1)
    assert refusal_of(Registry(memory_limit=4000 * 7), 1, model=model).retry_after is None  # it never fits


def test_memory_of_layouts_is_counted_and_that_of_equal_ones_once() -> None:
    large, other = (many_tensors(name) for name in "ab")
    registry = Registry(memory_limit=3_500_000)
    registry.join(1, model=large)
    one = registry.sessions.memory.reserved
    assert one > large.object_bytes > 2_000_000
    registry.join(2, model=Layout(large.tensors))
    assert registry.sessions.memory.reserved == one + registry.sessions.memory.worker_bytes(large)
    refusal = refusal_of(registry, 3, model=other)
    assert refusal.reason is Reason.MEMORY
    assert refusal.retry_after is not None
    assert f"{registry.sessions.memory.model_bytes(large) + 2 * large.object_bytes:,}" in refusal.message
    for session in registry.sessions.live():
        registry.sessions.leave(session)
    assert registry.sessions.memory.reserved == 0


def test_frozen_tensors_take_no_memory() -> None:
    model = Layout([TensorSpec("frozen", (1000,), ElementType.FLOAT32, TensorKind.FROZEN, sha256=bytes(32))])
    registry = Registry()
    registry.join(1, model=model)
    assert registry.sessions.memory.reserved == model.object_bytes


def test_memory_of_staging_buffers_is_what_the_pool_may_take() -> None:
    unset = MemoryBudget(10**9, staging_buffers=0, vectors_per_worker=2, more_buffers=1)
    for elements, buffers in ((2_048, 128), (65_536, 4), (1_000_000, 4)):
        assert unset.model_bytes(layout(elements)) == 4 * elements * (1 + buffers + 1 + 2)
        pool = StagingPool(0, 1, FifoQueue(), lambda: 0.0)
        pool.prepare(layout(elements))
        assert pool.capacity == buffers
    set_to_six = MemoryBudget(10**9, staging_buffers=6, vectors_per_worker=2, more_buffers=1)
    assert set_to_six.model_bytes(layout(2_048)) == 4 * 2_048 * (1 + 6 + 1 + 2)


def test_a_worker_that_does_not_know_the_length_of_an_epoch_is_refused_if_only_epochs_limit_it() -> None:
    registry = Registry(run=run(Budget(epochs=2)), bound=layout())
    with pytest.raises(RefusedError, match="steps_per_epoch=len") as refused:
        registry.join(1)
    assert refused.value.reason is Reason.MALFORMED
    assert len(registry.sessions) == 0
    both = Registry(run=run(Budget(steps=3, epochs=2)), bound=layout())
    assert both.join(1).worker.limit == 3


def test_steps_of_a_name_are_counted_over_its_sessions() -> None:
    registry = Registry(run=run(Budget(steps=2)), bound=layout())
    session = registry.join(1, "w")
    for _ in range(2):
        registry.run.reserve(session.worker)
        registry.run.applied(session.worker)
    assert registry.join(2, "w").worker.done


def test_representation_of_a_session_does_not_show_its_secret() -> None:
    session = Registry().sessions.join(joining(7), 0.0)
    assert session_id(7).hex() not in repr(session)
    assert repr(session_id(7)) not in repr(session)


def test_resumed_run_does_not_wait_for_a_worker_that_is_done() -> None:
    registry = Registry(run=run(Budget(steps=5), min_workers=2), bound=layout())
    registry.sessions.workers.restore(Worker("worker-9", 0, commits=5, limit=5, done=True))
    registry.join(1)
    assert registry.run.started
