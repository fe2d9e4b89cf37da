"""Workers exchange with the servers of their machine through shared memory, with the others over the network."""

from pathlib import Path

import numpy as np
from gem_worker.client import Observer

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from tests.shards.group import Float32, Worker, serving

WORKERS, ROUNDS, SHARDS = 3, 4, 3
# Each range is large enough to share.
LARGE = Layout(
    [
        TensorSpec("weight", (301, 211), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("bias", (2_003,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)


def train(sockets: Path | None, transports: list[str], *, swap: bool = False) -> list[Float32]:
    """Theta, and the last replies; `swap` the first two servers' sockets."""
    with serving(SHARDS, sockets=sockets, rule="gem", order="round-robin", min_workers=WORKERS) as group:
        if swap and sockets is not None:
            for old, new in (("0", "other"), ("1", "0"), ("other", "1")):
                (sockets / old).rename(sockets / new)
        workers = [Worker(group.address, number, LARGE) for number in range(WORKERS)]
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.pull()
        for _ in range(ROUNDS):
            for worker in workers:
                assert worker.commit().applied
        for server, transport in zip(group.servers, transports, strict=True):
            with Observer(server.address) as observer:
                used = {one["transport"] for one in observer.get_status()["workers"]}
            assert used == {f"TRANSPORT_KIND_{transport}"}
        found = [group.parameters(), *(worker.parameters for worker in workers)]
        for worker in workers:
            worker.end()
        return found


def test_shared_memory_gives_the_bits_of_the_network(tmp_path: Path) -> None:
    found = train(tmp_path, ["SHARED_MEMORY"] * SHARDS)
    expected = train(None, ["LANE"] * SHARDS)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_socket_of_another_server_is_not_used(tmp_path: Path) -> None:
    """Two machines may have different servers at one path."""
    found = train(tmp_path, ["LANE", "LANE", "SHARED_MEMORY"], swap=True)
    expected = train(None, ["LANE"] * SHARDS)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
