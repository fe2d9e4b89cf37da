"""A thousand clients at once: memory stays under its cap, who must wait is told for how long, and nobody starves."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults import crowd
from tests.faults.crowd import MODEL, Seen
from tests.faults.processes import count
from tests.figures import Figures
from tests.wire.processes import ServerProcess, server_process
from tests.wire.transfer import MIB

VECTOR = 4 * MODEL.parameter_count
# What the server counts for a layout of one tensor.
LAYOUT = 512
STAGING_BUFFERS = 4
# Beside what --memory-limit counts: a call, its session, and messages under way (a payload of 48 KB each way).
CLIENT_BYTES = 96 * 1024
LONGEST_PAUSE = 1.25  # seconds between two attempts of a client that was told to come back in one
HEALTH_PATIENCE = 20.0
LOOK_SECONDS = 0.1  # between two looks of a supervisor


class Watch:
    """Asks for the server's health, as a supervisor does, and for its commits, again and again."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._health = health_pb2_grpc.HealthStub(server.channel)
        self._seen: list[tuple[float, int]] = []
        self.health_seconds: list[float] = []
        self.over = False

    async def go_on(self) -> None:
        while not self.over:
            asked = time.monotonic()
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_PATIENCE)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            self.health_seconds.append(time.monotonic() - asked)
            self._seen.append((time.monotonic(), (await self._server.status()).commits))
            await asyncio.sleep(LOOK_SECONDS)

    def most_commits_in(self, seconds: float) -> int:
        """The most that came within so much time, or within what passed between two looks."""
        most = 0
        for index, (start, before) in enumerate(self._seen[:-1]):
            later = [commits for at, commits in self._seen[index + 1 :] if at - start <= seconds]
            most = max(most, (later[-1] if later else self._seen[index + 1][1]) - before)
        return most


async def let_all_train(server: ServerProcess, clients: int, commits: int, upload_seconds: float) -> Seen:
    """Start the clients in a few processes, a connection each, and wait until each has made its commits."""
    number = count(4, 8)
    names = [f"client-{index}" for index in range(clients)]
    told = [crowd.__file__, server.address, str(commits), str(upload_seconds)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    seen = Seen()
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, *told, *names[index::number], env=environment, stdout=asyncio.subprocess.PIPE
        )
        for index in range(number)
    ]
    try:
        for part in asyncio.as_completed([process.communicate() for process in processes]):
            output, _ = await part
            assert output, "a process of clients has failed; it has said why"
            seen.add(Seen(**json.loads(output)))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
    return seen


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("order", "fit", "room", "commits"),
    [
        ("fifo", count(150, 750), 16, count(8, 20)),
        ("round-robin", count(200, 750), count(100, 250), 3),
    ],
)
async def test_crowd_is_served_within_its_memory_and_nobody_starves(
    tmp_path: Path, order: str, fit: int, room: int, commits: int, figures: Figures
) -> None:
    clients = count(200, 1000)
    limit = VECTOR * (1 + STAGING_BUFFERS + 1 + 2) + 2 * VECTOR * fit + LAYOUT
    async with server_process(
        tmp_path,
        order=order,
        min_workers=fit,
        memory_limit=limit,
        staging_buffers=STAGING_BUFFERS,
        waiting_room=room,
    ) as server:
        first = await server.joined(MODEL)
        await first.initialize()
        await first.leave()
        before, watch = server.anonymous_bytes(), Watch(server)
        watching = asyncio.create_task(watch.go_on())
        seen = await let_all_train(server, clients, commits, count(1, 2) * 0.005)
        watch.over = True
        await watching
        status = await server.status()
        grown = server.highest_anonymous_bytes() - before
    assert seen.commits == status.commits == clients * commits
    assert seen.refusals["WAITING_ROOM"] > 0
    assert (seen.refusals["MEMORY"] > 0) == (fit < clients)
    assert grown <= limit + clients * CLIENT_BYTES
    # All others once, and who is served while a client pauses; three pauses, for what a busy machine makes of one.
    in_a_pause = watch.most_commits_in(LONGEST_PAUSE)
    assert seen.most_of_others <= clients + 3 * in_a_pause
    told = ", ".join(f"{reason} {number}" for reason, number in sorted(seen.refusals.items()))
    seconds = watch.health_seconds
    figures(
        f"{clients} clients at once, {order}, room for {fit}, {room} may wait",
        f"{seen.commits} commits, each client its {commits}; at most {seen.most_of_others} of others between two of a "
        f"client's own ({in_a_pause} came while one paused); told when to come back: {told}, at most "
        f"{seen.most_refusals_in_a_row} times in a row; memory grew by {grown / MIB:.0f} MiB, --memory-limit "
        f"{limit / MIB:.0f} MiB; health answered {len(seconds)} times, after {max(seconds):.1f} s at most",
    )
