"""The limit that gRPC sets: as many bytes in chunks as gemps sends, and back; no protobuf, checksum or mathematics.

Server and client in Python, as gemps is built: `grpc.aio` on one event loop, and the client library's blocking stream
with messages made while gRPC takes them; the client scales its gradient into the payload, as gemps' does. The channels
have gemps' arguments. The server in C++ is grpc_echo.cc.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from benchmarks.peers.interface import MB, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk, Kind

MIB = 1 << 20
CHUNK = MIB  # gemps' default
METHOD = "/gemps.bench.Echo/Exchange"


class PythonEcho(Contender):
    """Server and clients in Python."""

    name = "grpc-echo-python"
    title = "gRPC echo, Python"
    does = "grpc.aio server and gemps' kind of client; raw bytes, no mathematics: what gRPC in Python can do"
    kind: ClassVar[Kind] = "limit"
    updates: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = ("torch", "grpc")

    def server_memory(self, case: Case) -> int:
        """The messages of every worker."""
        return SERVER_PROCESS + case.workers * case.vector

    def worker_memory(self, case: Case) -> int:
        """The model, and both payloads."""
        return WORKER_PROCESS + 4 * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """An echo that answers when all bytes of a step have come."""
        asyncio.run(_serve(case.vector, desk))

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """One stream for all steps."""
        import grpc
        import torch

        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        delta = torch.empty(case.parameters)
        reply = torch.empty(case.parameters)
        outgoing = memoryview(delta.numpy()).cast("B")
        incoming = memoryview(reply.numpy()).cast("B")
        feed = _Feed()
        with grpc.insecure_channel(address, options=client_options()) as channel:
            call = channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)(feed)

            def step() -> None:
                model.scale_into(delta)
                feed.put(_chunks(outgoing))
                received = 0
                while received < len(incoming):
                    message = next(call)
                    incoming[received : received + len(message)] = message
                    received += len(message)
                model.parameters.copy_(reply)

            desk.pace(step)
            feed.end()
            for _ in call:
                pass


class CppServerEcho(PythonEcho):
    """The same clients against a server in C++."""

    name = "grpc-echo-cpp"
    title = "gRPC echo, C++ server"
    does = "a server in C++ that keeps gRPC's slices and sends them back, with the Python echo's clients"

    def unavailable(self) -> str | None:
        """It has to be built."""
        from benchmarks.harness.environments import build_echo

        return build_echo()

    def server_memory(self, case: Case) -> int:
        """The messages of every worker."""
        return 50 * MB + case.workers * case.vector

    def command(self, case: Case, folder: Path) -> list[str]:
        """The program."""
        from benchmarks.harness.environments import ECHO

        return [str(ECHO), "server", str(case.vector), str(CHUNK), str(folder / "ready.json")]


class CppEcho(CppServerEcho):
    """Server and clients in C++."""

    name = "grpc-echo-cpp-both"
    title = "gRPC echo, C++ server and clients"
    does = "server and clients in C++; the clients copy bytes out of and into buffers of their own"

    def worker_memory(self, case: Case) -> int:
        """Two payloads, and the Python process that starts it."""
        return WORKER_PROCESS + 2 * case.vector

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """Start the client, and pass on what is said."""
        from benchmarks.harness.desk import WARM_UP_STEPS
        from benchmarks.harness.environments import ECHO

        command = [str(ECHO), "client", str(case.vector), str(CHUNK), address, str(WARM_UP_STEPS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            if client.stdout.readline().strip() != "ready":
                raise RuntimeError("the client in C++ did not get through")
            start, end = desk.start()
            client.stdin.write(f"{start!r} {end!r}\n")
            client.stdin.flush()
            took = [float(word) for word in client.stdout.readline().split()]
            desk.finish(took, start)
            client.stdin.write("end\n")


class _Feed:
    """The request iterator: gRPC's thread takes the messages of what was put in."""

    def __init__(self) -> None:
        self._entries: SimpleQueue[Iterator[bytes] | None] = SimpleQueue()
        self._current: Iterator[bytes] = iter(())

    def put(self, entry: Iterator[bytes]) -> None:
        self._entries.put(entry)

    def end(self) -> None:
        self._entries.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            entry = self._entries.get()
            if entry is None:
                raise StopIteration
            self._current = entry


def _chunks(payload: memoryview) -> Iterator[bytes]:
    return (bytes(payload[offset : offset + CHUNK]) for offset in range(0, len(payload), CHUNK))


async def _serve(expected: int, desk: Desk) -> None:
    import grpc

    async def exchange(messages: AsyncIterator[bytes], context: Any) -> None:
        kept: list[bytes] = []
        received = 0
        async for message in messages:
            kept.append(message)
            received += len(message)
            if received == expected:
                for one in kept:
                    await context.write(one)
                kept.clear()
                received = 0

    handler = grpc.stream_stream_rpc_method_handler(exchange, request_deserializer=None, response_serializer=None)
    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    desk.ready(f"127.0.0.1:{port}")
    await asyncio.get_running_loop().run_in_executor(None, desk.wait_for_end)
    await server.stop(1)


def client_options() -> list[tuple[str, int]]:
    """The channel arguments of gemps that concern speed (worker/gem_worker/client/channel.py)."""
    return [
        ("grpc.max_receive_message_length", 4 * MIB),
        ("grpc.http2.max_frame_size", 16 * MIB - 1),
        ("grpc.http2.lookahead_bytes", 16 * MIB),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.enable_http_proxy", 0),
    ]


def server_options() -> list[tuple[str, int]]:
    """Those of server/gem_server/service/listener.py."""
    return [
        ("grpc.max_receive_message_length", 4 * MIB),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.max_frame_size", 16 * MIB - 1),
        ("grpc.http2.lookahead_bytes", 4 * MIB),
        ("grpc.http2.bdp_probe", 0),
    ]
