"""The server starts without what only Linux has."""

import os

import pytest

from tests.worker.serving import ServerThread


def test_server_starts_on_a_system_without_processor_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    with ServerThread() as server:
        assert server.port > 0
