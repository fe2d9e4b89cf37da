"""Pulls without a session from several servers are of one clock."""

import threading
from typing import Any

import numpy as np
import pytest
from gem_worker.client import Observer, ServerRefusedError, ServerUnavailableError
from gem_worker.client import observer as observer_module
from gem_worker.client.observer import PulledParameters
from gem_worker.client.pull import receive_pull
from gemps.v1.parameters_pb2 import PullRequest

from gem_core.wire_types import WireType
from tests.shards.group import MODEL, Float32, Group, Worker, serving


def values(pulled: PulledParameters | None) -> Float32:
    assert pulled is not None
    assert pulled.layout == MODEL
    return np.frombuffer(pulled.payload, np.float32, MODEL.parameter_count)


def worker_of(group: Group, number: int = 0) -> Worker:
    worker = Worker(group.address, number)
    worker.begin()
    worker.pull()
    return worker


def test_a_reader_gets_one_clock_although_commits_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(3, rule="gem") as group, Observer(group.address) as observer:
        worker = worker_of(group)
        assert worker.commit().applied
        expected, clock = group.parameters(), group.clocks()[0]

        def commit_before(calls: Any, watchdog: Any, request: PullRequest, receiver: Any) -> Any:
            if request.clock:
                assert worker.commit().applied
            return receive_pull(calls, watchdog, request, receiver)

        monkeypatch.setattr(observer_module, "receive_pull", commit_before)
        pulled = observer.pull()
        assert np.array_equal(values(pulled), expected)
        assert pulled is not None
        assert pulled.version.clock == clock
        assert int(np.frombuffer(pulled.payload[-8:], np.int64)[0]) == 1  # the BUFFER of the first commit
        monkeypatch.undo()
        assert np.array_equal(values(observer.pull()), group.parameters())
        worker.end()


def test_a_reader_that_is_overtaken_pulls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(2) as group, Observer(group.address) as observer, Observer(group.address) as other:
        worker = worker_of(group)
        overtaken: list[int] = []
        is_overtaking = threading.Lock()

        def overtake(calls: Any, watchdog: Any, request: PullRequest, receiver: Any) -> Any:
            if request.clock and len(overtaken) < limit and is_overtaking.acquire(blocking=False):
                overtaken.append(request.clock)
                assert worker.commit().applied
                other.pull()
                is_overtaking.release()
            return receive_pull(calls, watchdog, request, receiver)

        monkeypatch.setattr(observer_module, "receive_pull", overtake)
        limit = 2
        assert np.array_equal(values(observer.pull()), group.parameters())
        assert len(overtaken) == 2
        limit = 100
        with pytest.raises(ServerUnavailableError, match="pull from the primary again"):
            observer.pull()
        worker.end()


def test_wire_types_and_known_versions() -> None:
    with serving(2) as group, Observer(group.address) as observer:
        worker = worker_of(group)
        pulled = observer.pull(wire_type=WireType.BFLOAT16)
        assert pulled is not None
        assert len(pulled.payload) == worker.wire_bytes(WireType.BFLOAT16)
        assert observer.pull(known_version=pulled.version) is None
        assert worker.commit().applied
        assert observer.pull(known_version=pulled.version) is not None
        worker.end()


def test_a_secondary_alone_has_no_parameters_to_read() -> None:
    with serving(2) as group, Observer(group.servers[1].address) as observer:
        worker = worker_of(group)
        with pytest.raises(ServerRefusedError, match="pull from the primary, then here"):
            observer.pull()
        worker.end()
