"""The gRPC port of a real server process."""

import select
import signal
import socket
from pathlib import Path

from tests.wire.processes import server_process

QUEUE = 513  # listen(512) takes one more
STORM = 1000


async def test_a_stopped_server_has_512_connections_to_accept(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server:
        host, _, port = server.address.rpartition(":")
        server.process.send_signal(signal.SIGSTOP)
        connections = [socket.socket() for _ in range(STORM)]
        try:
            poll = select.poll()
            for one in connections:
                one.setblocking(False)
                one.connect_ex((host, int(port)))
                poll.register(one, select.POLLOUT)
            assert len(poll.poll(0)) == QUEUE
        finally:
            for one in connections:
                one.close()
            server.process.send_signal(signal.SIGCONT)
