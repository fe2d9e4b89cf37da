"""Hosts of a test's own, where they can be made."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.cluster import Cluster, cluster, why_not


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Cluster]:
    """A server's host and three workers' hosts, or a skip that says what is missing."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster(tmp_path, workers=3) as made:
        yield made
